// Which checkpoints load, and that every layer comes out as it is stored.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

#include "checkpoint/generator.h"
#include "checkpoint/parts.h"
#include "checkpoint/recipe.h"
#include "checkpoint/synth.h"
#include "file_fixtures.h"
#include "model_file.h"

namespace h3s::checkpoint {
namespace {

constexpr const char* kQkv = "blocks.1.attn.qkv_proj";
constexpr auto kInt8 = WeightFormat::kInt8Tensorwise;

class Loads : public testing::Test {
 protected:
  Checkpoint open(const ModelFile& file) {
    file.write(path_);
    return Checkpoint::open(path_);
  }
  TempDir directory_;
  std::string path_ = directory_.file("model.safetensors");
};

// Every tensor the network has must come out with the bytes that were written.
void expect_all_parts(const Checkpoint& checkpoint, const ModelFile& file) {
  for (const Part& part : model_parts(checkpoint.spec())) {
    const std::string key = checkpoint.prefix() + part.key();
    const io::TensorInfo& info =
        is_linear(part.kind) ? *checkpoint.linear(part.name).weight : checkpoint.tensor(part.key());
    ASSERT_EQ(info.name, key);
    ASSERT_EQ(std::memcmp(checkpoint.data(info), file.bytes(key).data(), info.bytes()), 0) << key;
    if (part.bias) {
      ASSERT_NE(checkpoint.linear(part.name).bias, nullptr) << key;
    }
  }
}

TEST_F(Loads, EveryFormFormatAndPrefix) {
  for (const Form form : {Form::kCurve, Form::kFull})
    for (const WeightFormat format : {WeightFormat::kBF16, kInt8})
      for (const char* prefix : {"", "model.diffusion_model.", "diffusion_model."}) {
        const ModelFile file(form, format, prefix);
        const Checkpoint checkpoint = open(file);
        EXPECT_EQ(checkpoint.prefix(), prefix);
        EXPECT_EQ(checkpoint.spec().curve(), form == Form::kCurve);
        EXPECT_EQ(checkpoint.quantised(), format == kInt8);
        spec::ModelSpec expected = small_spec(form);
        EXPECT_TRUE(checkpoint.spec() == expected)
            << weight_format_name(format) << " prefix \"" << prefix << '"';
        expect_all_parts(checkpoint, file);
      }
}

TEST_F(Loads, Int8LayerAsStored) {
  const Checkpoint checkpoint = open(ModelFile(Form::kCurve, kInt8));
  const LinearSource source = checkpoint.linear(kQkv);
  EXPECT_EQ(source.format, kInt8);
  EXPECT_EQ(source.n, 384);
  EXPECT_EQ(source.k, 32);
  EXPECT_EQ(source.rotate_group, 16);
  EXPECT_EQ(source.bias, nullptr);
  ASSERT_NE(source.scale, nullptr);
  EXPECT_EQ(source.scale->elements(), 384);
}

TEST_F(Loads, HalfAndSinglePrecisionBlocks) {
  ModelFile file;
  file.set("blocks.1.attn.qkv_proj.weight", DType::kF16, {384, 32}, "");
  file.set("blocks.1.mlp.fc1.weight", DType::kF32, {128, 32}, "");
  file.set("blocks.1.norm1.weight", DType::kF16, {32}, "");
  const Checkpoint checkpoint = open(file);
  EXPECT_EQ(checkpoint.linear(kQkv).format, WeightFormat::kF16);
  EXPECT_EQ(checkpoint.linear("blocks.1.mlp.fc1").format, WeightFormat::kF32);
  EXPECT_FALSE(checkpoint.quantised());
}

TEST_F(Loads, QuantisedLayersBesidePlainOnes) {
  ModelFile file(Form::kCurve, kInt8);
  file.set("blocks.1.attn.qkv_proj.weight", DType::kBF16, {384, 32}, "");
  file.erase("blocks.1.attn.qkv_proj.weight_scale");
  file.erase("blocks.1.attn.qkv_proj.comfy_quant");
  const Checkpoint checkpoint = open(file);
  EXPECT_EQ(checkpoint.linear(kQkv).format, WeightFormat::kBF16);
  EXPECT_EQ(checkpoint.linear("blocks.0.attn.qkv_proj").format, kInt8);
  EXPECT_TRUE(checkpoint.quantised());
}

TEST_F(Loads, ScalarScaleWithoutRotation) {
  ModelFile file(Form::kCurve, kInt8);
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {1}, {1, 1}}) {
    file.set_floats("blocks.1.attn.qkv_proj.weight_scale", shape, {0.5f});
    file.set_text("blocks.1.attn.qkv_proj.comfy_quant", R"({"format":"int8_tensorwise"})");
    const Checkpoint checkpoint = open(file);
    const LinearSource source = checkpoint.linear(kQkv);
    EXPECT_EQ(source.rotate_group, 0);
    EXPECT_EQ(source.scale->elements(), 1);
  }
}

TEST_F(Loads, OptionsNestedInParams) {
  ModelFile file(Form::kCurve, kInt8);
  file.set_text("blocks.1.attn.qkv_proj.comfy_quant",
                R"({"format":"int8_tensorwise","params":{"convrot":true,"convrot_groupsize":4}})");
  EXPECT_EQ(open(file).linear(kQkv).rotate_group, 4);
}

TEST_F(Loads, Int8AdalnOfTheFullForm) {
  ModelFile file(Form::kFull, kInt8);
  file.set("blocks.1.adaln_proj.linear.weight", DType::kI8, {576, 24}, "");
  file.set_floats("blocks.1.adaln_proj.linear.weight_scale", {576, 1}, std::vector<float>(576, 0.25f));
  file.set_text("blocks.1.adaln_proj.linear.comfy_quant",
                R"({"format":"int8_tensorwise","convrot":true,"convrot_groupsize":4})");
  const LinearSource source = open(file).linear("blocks.1.adaln_proj.linear");
  EXPECT_EQ(source.format, kInt8);
  EXPECT_EQ(source.rotate_group, 4);
  EXPECT_NE(source.bias, nullptr);
}

TEST_F(Loads, TagsOutOfTheMetadata) {
  for (const char* prefix : {"", "model.diffusion_model."}) {
    const std::string base = prefix;
    ModelFile file(Form::kCurve, kInt8, prefix);
    file.erase(base + "blocks.1.attn.qkv_proj.comfy_quant");
    for (const std::string& layer : {std::string(kQkv), base + kQkv}) {
      file.metadata["_quantization_metadata"] =
          R"({"layers":{")" + layer +
          R"(":{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":4}}})";
      EXPECT_EQ(open(file).linear(kQkv).rotate_group, 4) << layer;
    }
  }
}

TEST_F(Loads, ConfigThatAgrees) {
  ModelFile file;
  file.metadata["config"] = R"({"transformer":{"hidden_size":32,"num_layers":3,"rope_theta":1.5},"vae":{}})";
  EXPECT_EQ(open(file).spec().hidden, 32);
}

TEST_F(Loads, ForeignKeysAreIgnored) {
  ModelFile file(Form::kCurve, WeightFormat::kBF16, "model.diffusion_model.");
  file.set("vae.decoder.weight", DType::kF32, {2}, "");
  file.set("blocks.9.norm1.weight", DType::kF32, {2}, "");  // not under the prefix: no block of this model
  file.set("model.diffusion_model.blocks.0.attn.to_gate_compress.weight", DType::kF32, {2}, "");
  EXPECT_EQ(open(file).spec().layers, 3);
}

TEST_F(Loads, SurvivesTheOriginalObject) {
  LinearSource source;
  std::optional<Checkpoint> copy;
  {
    const Checkpoint checkpoint = open(ModelFile());
    copy = checkpoint;
    source = checkpoint.linear(kQkv);
  }
  EXPECT_EQ(source.weight->name, copy->linear(kQkv).weight->name);
}

TEST_F(Loads, UnknownLayersAreTheCallersMistake) {
  const Checkpoint checkpoint = open(ModelFile());
  expect_refused([&] { checkpoint.linear("blocks.7.attn.qkv_proj"); }, Status::kInvalidArgument, path_,
                 {"blocks.7.attn.qkv_proj: no such layer"});
  expect_refused([&] { checkpoint.tensor("absent"); }, Status::kBadFile, path_, {": absent: ", "missing"});
}

TEST_F(Loads, Int8OutsideTheBlocks) {
  ModelFile file(Form::kCurve, kInt8);
  for (const std::string layer : {"condition_proj", "token_refiner.blocks.0.mlp.fc2"}) {
    const std::vector<std::int64_t> shape = file.decl(layer + ".weight").shape;
    file.set(layer + ".weight", DType::kI8, shape, "");
    file.set_floats(layer + ".weight_scale", {}, {0.25f});
    file.set_text(layer + ".comfy_quant", R"({"format":"int8_tensorwise"})");
    EXPECT_EQ(open(file).linear(layer).format, kInt8);
  }
}

TEST_F(Loads, SyntheticSizesNoNetworkHas) {
  const auto refused = [&](spec::ModelSpec spec, const char* name) {
    try {
      write_synthetic_checkpoint(path_, {.spec = spec}, nullptr);
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
    EXPECT_EQ(directory_.num_files(), 0u);
  };
  refused({.hidden = 0}, "hidden must be 1 to");
  refused({.layers = 5000}, "layers must be 1 to");
  refused({.heads = -1}, "heads must be 1 to");
  refused({.timestep_dim = 3}, "timestep width must be even");
  refused({.curve_grid = 1}, "curve grid must be 2 to");
}

TEST_F(Loads, SyntheticBytesDoNotDependOnThreads) {
  std::vector<std::string> files;
  for (const int threads : {1, 2, 3}) {
    write_synthetic_checkpoint(
        path_, {.spec = small_spec(Form::kFull), .format = kInt8, .seed = 7, .threads = threads}, nullptr);
    files.push_back(read_file(path_));
  }
  EXPECT_EQ(files[0], files[1]);
  EXPECT_EQ(files[0], files[2]);
}

// What is planned without a file is what a file would have been planned as.
TEST_F(Loads, ATableWithoutDataIsBoundAsItsFile) {
  spec::ModelSpec spec = small_spec(Form::kCurve);
  spec.hidden = spec.ffn = 128;  // which every format can hold
  for (const std::string& name : synthetic_format_names()) {
    const WeightFormat format = *writable_format(name);
    write_synthetic_checkpoint(path_, {.spec = spec, .format = format}, nullptr);
    const Checkpoint file = Checkpoint::open(path_), table = Checkpoint::without_data(spec, format);
    EXPECT_EQ(table.quantised(), file.quantised()) << name;
    ASSERT_EQ(table.file().tensors().size(), file.file().tensors().size()) << name;
    for (const Part& part : model_parts(spec)) {
      if (!is_linear(part.kind)) continue;
      const LinearSource a = table.linear(part.name), b = file.linear(part.name);
      const auto fields = [](const LinearSource& source) {
        const auto bytes = [](const io::TensorInfo* info) { return info == nullptr ? 0 : info->bytes(); };
        return std::tuple(source.key, source.format, source.n, source.k, source.rotate_group,
                          source.scale_group, source.activation, bytes(source.weight), bytes(source.bias),
                          bytes(source.scale), bytes(source.group_scale), bytes(source.codebook));
      };
      EXPECT_EQ(fields(a), fields(b)) << name << " " << part.name;
    }
  }
}

}  // namespace
}  // namespace h3s::checkpoint
