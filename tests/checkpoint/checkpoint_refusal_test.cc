// Which checkpoints are refused, and that the one line names file, key and reason.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "checkpoint/checkpoint.h"
#include "file_fixtures.h"
#include "model_file.h"

namespace h3s::checkpoint {
namespace {

constexpr auto kInt8 = WeightFormat::kInt8Tensorwise;
const std::string kQkv = "blocks.1.attn.qkv_proj";

class Refused : public testing::Test {
 protected:
  void refused(const ModelFile& file, Status status, const std::vector<std::string>& pieces) {
    file.write(path_);
    expect_refused([&] { Checkpoint::open(path_); }, status, path_, pieces);
  }
  void bad(const ModelFile& file, const std::vector<std::string>& pieces) {
    refused(file, Status::kBadFile, pieces);
  }
  void unsupported(const ModelFile& file, const std::vector<std::string>& pieces) {
    refused(file, Status::kUnsupported, pieces);
  }
  void bad_tag(const std::string& text, const std::vector<std::string>& pieces) {
    ModelFile file(Form::kCurve, kInt8);
    file.set_text(kQkv + ".comfy_quant", text);
    bad(file, pieces);
  }
  void bad_scales(const std::vector<std::int64_t>& shape, const std::vector<float>& values,
                  const std::vector<std::string>& pieces) {
    ModelFile file(Form::kCurve, kInt8);
    file.set_floats(kQkv + ".weight_scale", shape, values);
    bad(file, pieces);
  }

  TempDir directory_;
  std::string path_ = directory_.file("model.safetensors");
};

TEST_F(Refused, AnyMissingTensor) {
  for (const Form form : {Form::kCurve, Form::kFull}) {
    const ModelFile whole(form, kInt8);
    for (const std::string& key : whole.keys()) {
      ModelFile file = whole;
      file.erase(key);
      const bool tag = key.ends_with(".comfy_quant");  // then the weight is I8 without tag
      const std::string named = tag ? key.substr(0, key.rfind('.')) + ".weight" : key;
      // A missing table makes the file look like the full form: the keys of that form are missing then.
      bad(file, {key == "adaln_t_table" ? "time_embedder.proj_in.weight" : named});
    }
  }
}

TEST_F(Refused, WrongShapes) {
  // Sizes are read off some of these; then the first tensor that disagrees is named.
  const auto reshaped = [](const std::string& key, std::vector<std::int64_t> shape) {
    ModelFile file;
    file.set(key, file.decl(key).dtype, shape, "");
    return file;
  };
  bad(reshaped(kQkv + ".weight", {384, 33}), {kQkv + ".weight", "shape must be [384,32], got [384,33]"});
  bad(reshaped(kQkv + ".weight", {384}), {kQkv + ".weight", "shape must be [384,32], got [384]"});
  bad(reshaped("blocks.2.norm2.weight", {31}), {"blocks.2.norm2.weight", "shape must be [32], got [31]"});
  bad(reshaped("condition_proj.bias", {1}), {"condition_proj.bias", "shape must be [32], got [1]"});
  bad(reshaped("audio_patch_proj.weight", {32, 31}), {"audio_patch_proj.weight", "shape must be [32,32]"});
  bad(reshaped("blocks.0.attn.qkv_proj.weight", {383, 32}),
      {"blocks.0.attn.qkv_proj.weight", "multiple of 384 rows"});
  bad(reshaped("blocks.0.mlp.fc1.weight", {127, 32}), {"blocks.0.mlp.fc1.weight", "multiple of 2 rows"});
  bad(reshaped("final_layer.video_out.weight", {95, 32}),
      {"final_layer.video_out.weight", "multiple of 4 rows"});
  bad(reshaped("video_patch_proj.weight", {0, 96}), {"video_patch_proj.weight", "dimension 0 is 0"});
  bad(reshaped("video_patch_proj.weight", {std::int64_t{1} << 40, 0}),
      {"video_patch_proj.weight", "dimension 0 is"});
  bad(reshaped("adaln_t_table", {1, 8}), {"adaln_t_table", "at least 2 points"});
}

TEST_F(Refused, WrongDTypes) {
  const auto retyped = [](const std::string& key, DType dtype) {
    ModelFile file;
    file.set(key, dtype, file.decl(key).shape, "");
    return file;
  };
  bad(retyped(kQkv + ".weight", DType::kI32), {kQkv + ".weight", "dtype must be", "I32"});
  bad(retyped(kQkv + ".weight", DType::kI8), {kQkv + ".weight", "I8 weight without the tag"});
  bad(retyped("blocks.1.norm1.weight", DType::kF64), {"blocks.1.norm1.weight", "dtype must be", "F64"});
  bad(retyped("condition_proj.bias", DType::kI8), {"condition_proj.bias", "dtype must be", "I8"});
  bad(retyped("rope.inv_freq", DType::kBF16), {"rope.inv_freq", "dtype must be F32"});
  bad(retyped("adaln_t_table", DType::kF16), {"adaln_t_table", "dtype must be F32"});
  unsupported(retyped(kQkv + ".weight", DType::kF8E4M3), {kQkv + ".weight", "fp8"});
}

TEST_F(Refused, SizesThisBuildCannotRun) {
  ModelFile head;
  head.set("blocks.0.attn.q_norm.weight", DType::kBF16, {64}, "");
  unsupported(head, {"blocks.0.attn.q_norm.weight", "head width must be 128, got 64"});
  ModelFile rope;
  rope.set("rope.inv_freq", DType::kF32, {15}, "");
  unsupported(rope, {"rope.inv_freq", "expected 16 frequencies, got 15"});
}

TEST_F(Refused, TablesWithoutNumbers) {
  ModelFile file;
  std::vector<float> curve(40, 0.5f);
  curve[39] = std::numeric_limits<float>::quiet_NaN();
  file.set_floats("adaln_t_table", {5, 8}, curve);
  bad(file, {"adaln_t_table", "value 39 is nan"});
}

TEST_F(Refused, GapsInBlockNumbers) {
  const auto without = [](const std::string& base) {
    ModelFile file;
    for (const std::string& key : file.keys())
      if (key.rfind(base, 0) == 0) file.erase(key);
    return file;
  };
  bad(without("blocks.1."), {": blocks.1: ", "block 2 exists", "gap"});
  bad(without("blocks.0."), {": blocks.0: ", "block 1 exists", "gap"});
  bad(without("blocks."), {": blocks.0: ", "no blocks"});
  ModelFile refiner;
  refiner.set("token_refiner.blocks.2.norm1.weight", DType::kBF16, {32}, "");
  bad(refiner, {": token_refiner.blocks.1: ", "block 2 exists", "gap"});
}

TEST_F(Refused, NotThisNetwork) {
  ModelFile file;
  file.erase("audio_patch_proj.weight");
  bad(file, {"audio_patch_proj.weight", "not a MiniMax-H3 checkpoint"});
  file.set("transformer_blocks.0.attn.to_q.weight", DType::kBF16, {1}, "");
  bad(file, {"Diffusers"});
  ModelFile lora;
  lora.erase("audio_patch_proj.weight");
  lora.set("diffusion_model.blocks.0.attn.qkv_proj.lora_A.weight", DType::kBF16, {1}, "");
  bad(lora, {"LoRA"});
}

TEST_F(Refused, TwoPrefixes) {
  ModelFile file;
  file.set("diffusion_model.video_patch_proj.weight", DType::kBF16, {1}, "");
  file.set("diffusion_model.audio_patch_proj.weight", DType::kBF16, {1}, "");
  bad(file, {"video_patch_proj.weight", "two prefixes"});
}

TEST_F(Refused, ConfigThatContradictsTheTensors) {
  ModelFile file;
  file.metadata["config"] = R"({"transformer":{"num_layers":2}})";
  bad(file, {"__metadata__.config", "transformer.num_layers is 2, but the tensors say 3"});
  file.metadata["config"] = R"({"transformer":{"hidden_size":"32"}})";
  bad(file, {"__metadata__.config", "transformer.hidden_size is \"32\", but the tensors say 32"});
  file.metadata["config"] = R"({"transformer":7})";
  bad(file, {"__metadata__.config", "expected an object"});
  file.metadata["config"] = "text";
  bad(file, {"__metadata__.config", "not valid JSON"});
}

TEST_F(Refused, ScalesThatAreNotThere) {
  ModelFile file(Form::kCurve, kInt8);
  file.erase(kQkv + ".weight_scale");
  bad(file, {kQkv + ".weight_scale", "missing"});
}

TEST_F(Refused, ScalesThatAreNoScales) {
  std::vector<float> scales(384, 0.5f);
  const auto with = [&](float value) {
    std::vector<float> changed = scales;
    changed[383] = value;
    return changed;
  };
  const std::string key = kQkv + ".weight_scale";
  bad_scales({384, 1}, with(0.0f), {key, "scale 383 is 0"});
  bad_scales({384, 1}, with(-0.5f), {key, "scale 383 is -0.5"});
  bad_scales({384, 1}, with(std::numeric_limits<float>::quiet_NaN()), {key, "scale 383 is nan"});
  bad_scales({384, 1}, with(std::numeric_limits<float>::infinity()), {key, "scale 383 is inf"});
  bad_scales({}, {0.0f}, {key, "scale 0 is 0"});
  bad_scales({383, 1}, scales, {key, "expected 1 or 384 values, got shape [383,1]"});
  bad_scales({1, 384}, scales, {key, "expected 1 or 384 values, got shape [1,384]"});
  bad_scales({0}, {}, {key, "expected 1 or 384 values, got shape [0]"});
  ModelFile file(Form::kCurve, kInt8);
  file.set(key, DType::kBF16, {384, 1}, "");
  bad(file, {key, "dtype must be F32, got BF16"});
}

TEST_F(Refused, TagsThatAreNoTags) {
  const std::string key = kQkv + ".comfy_quant";
  bad_tag("", {key, "empty"});
  bad_tag("   ", {key, "empty"});
  bad_tag("not json", {key, "not valid JSON"});
  bad_tag("{\"format\":\"\xff\"}", {key, "not valid JSON"});
  bad_tag(std::string("{}\0", 3), {key, "NUL"});
  bad_tag("[]", {key, "expected a JSON object"});
  bad_tag("{}", {key, "no `format`"});
  bad_tag(R"({"format":7})", {key, "`format` must be a string"});
  bad_tag(R"({"format":"a","format":"b"})", {key, "\"format\" is given twice"});
  bad_tag(R"({"format":"int8_tensorwise","convrot":1})", {key, "convrot must be true or false"});
  bad_tag(R"({"format":"int8_tensorwise","convrot":true,"convrot_groupsize":0})", {key, "positive integer"});
  bad_tag(R"({"format":"int8_tensorwise","convrot":true,"convrot_groupsize":-4})", {key, "positive integer"});
  bad_tag(R"({"format":"int8_tensorwise","convrot":true,"convrot_groupsize":4.0})",
          {key, "positive integer"});
  ModelFile file(Form::kCurve, kInt8);
  file.set(key, DType::kI8, {72}, file.bytes(key));
  bad(file, {key, "must be U8, got I8"});
  file.set(key, DType::kU8, {70000}, "");
  bad(file, {key, "70000 bytes"});
}

TEST_F(Refused, RotationGroupsThatDoNotFit) {
  const std::string key = kQkv + ".weight";
  const auto tag = [](int group) {
    return fmt::format(R"({{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":{}}})", group);
  };
  bad_tag(tag(8), {key, "power of 4", "got 8"});
  bad_tag(tag(1), {key, "power of 4", "got 1"});
  bad_tag(tag(64), {key, "64 does not divide the 32 columns"});
  bad_tag(R"({"format":"int8_tensorwise","convrot":true})", {key, "256 does not divide the 32 columns"});
}

TEST_F(Refused, FormatsKnownByName) {
  ModelFile file(Form::kCurve, kInt8);
  file.set_text(kQkv + ".comfy_quant", R"({"format":"awq_w4a16"})");
  unsupported(file, {": " + kQkv + ": ", "cannot run weight format \"awq_w4a16\""});
}

TEST_F(Refused, UnknownFormats) {
  bad_tag(R"({"format":"int3_magic"})", {": " + kQkv + ": ", "unknown weight format \"int3_magic\""});
  bad_tag(R"({"format":"bf16"})", {": " + kQkv + ": ", "unknown weight format \"bf16\""});
}

TEST_F(Refused, OptionsThisBuildCannotRun) {
  ModelFile island(Form::kCurve, kInt8);
  island.set("video_patch_proj.weight", DType::kI8, {32, 96}, "");
  island.set_floats("video_patch_proj.weight_scale", {}, {0.5f});
  island.set_text("video_patch_proj.comfy_quant", R"({"format":"int8_tensorwise"})");
  unsupported(island, {"video_patch_proj.weight", "fp32 island"});
}

TEST_F(Refused, ATagAndAWeightThatDisagree) {
  ModelFile file(Form::kCurve, kInt8);
  file.set(kQkv + ".weight", DType::kBF16, {384, 32}, "");
  bad(file, {kQkv + ".weight", "dtype must be I8 as its tag says, got BF16"});
}

TEST_F(Refused, StrayQuantisation) {
  ModelFile stray;
  stray.set_floats(kQkv + ".weight_scale", {384, 1}, std::vector<float>(384, 0.5f));
  bad(stray, {kQkv + ".weight_scale", "no .comfy_quant tag"});
  ModelFile nowhere;
  nowhere.set("blocks.1.attn.extra.weight", DType::kBF16, {1}, "");
  nowhere.set_text("blocks.1.attn.extra.comfy_quant", R"({"format":"int8_tensorwise"})");
  bad(nowhere, {"blocks.1.attn.extra.comfy_quant", "does not have"});
  ModelFile no_weight;
  no_weight.set_text("blocks.1.attn.extra.comfy_quant", R"({"format":"int8_tensorwise"})");
  bad(no_weight, {"blocks.1.attn.extra.weight", "missing"});
}

TEST_F(Refused, MetadataTags) {
  const std::string where = "__metadata__._quantization_metadata";
  ModelFile file(Form::kCurve, kInt8);
  const auto refused_with = [&](const std::string& text, const std::vector<std::string>& pieces) {
    file.metadata["_quantization_metadata"] = text;
    bad(file, pieces);
  };
  refused_with("", {where, "empty"});
  refused_with("{}", {where, "`layers`"});
  refused_with(R"({"layers":[]})", {where, "`layers`"});
  refused_with(R"({"layers":{"x":1}})", {where, "x", "expected an object"});
  refused_with(R"({"layers":{"x":{}}})", {where, "x", "no `format`"});
  refused_with(R"({"layers":{"blocks.1.attn.qkv_proj":{"format":"int8_tensorwise"}}})",
               {where, "contradicts the tag " + kQkv + ".comfy_quant"});
}

}  // namespace
}  // namespace h3s::checkpoint
