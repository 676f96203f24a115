// Conversions: every format from plain weights is what the quantisers make and what the reference files hold,
// rows come into the network's order, and what cannot be converted is refused and leaves nothing.
#include "checkpoint/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "checkpoint/parts.h"
#include "checkpoint/quantize_int8.h"
#include "checkpoint/quantize_w4a8.h"
#include "checkpoint/synth.h"
#include "checkpoint/weight_rows.h"
#include "file_fixtures.h"
#include "model_file.h"
#include "spec/golden_dir.h"
#include "verify/golden.h"

namespace h3s::checkpoint {
namespace {

using enum WeightFormat;

constexpr WeightFormat kQuantised[] = {kInt8Tensorwise, kFloat8E4M3, kFloat8E5M2, kMxfp8,
                                       kNvfp4,          kAsymW4A8,   kConvrotW4A4};
const std::string kQkv = "blocks.1.attn.qkv_proj";

// Widths that every format can hold.
spec::ModelSpec wide_spec(Form form) {
  spec::ModelSpec spec = small_spec(form);
  spec.hidden = 128;
  spec.layers = 2;
  spec.heads = 2;
  spec.ffn = 128;
  return spec;
}

class Convert : public testing::Test {
 protected:
  // A synthetic checkpoint.
  std::string synth(const std::string& name, WeightFormat format, Form form = Form::kCurve,
                    const std::string& prefix = "") {
    const std::string path = directory_.file(name);
    write_synthetic_checkpoint(path, {.spec = wide_spec(form), .format = format, .seed = 5, .prefix = prefix},
                               nullptr);
    return path;
  }
  std::string write(const std::string& name, const ModelFile& file) {
    file.write(directory_.file(name));
    return directory_.file(name);
  }
  // Converts and opens the result.
  Checkpoint convert(const std::string& input, const ConvertOptions& options) {
    const std::string path = directory_.file("converted");
    summary_ = convert_checkpoint(Checkpoint::open(input), path, options, nullptr);
    return Checkpoint::open(path);
  }
  Checkpoint convert(const std::string& input, WeightFormat format) {
    return convert(input, ConvertOptions{.rules = block_rules(format)});
  }
  void refused(const std::string& input, const ConvertOptions& options, Status status,
               const std::vector<std::string>& pieces) {
    const Checkpoint checkpoint = Checkpoint::open(input);
    const std::size_t files = directory_.num_files();
    try {
      convert_checkpoint(checkpoint, directory_.file("refused"), options, nullptr);
      ADD_FAILURE() << "was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(static_cast<int>(e.status()), static_cast<int>(status)) << e.what();
      for (const std::string& piece : pieces)
        EXPECT_NE(std::string(e.what()).find(piece), std::string::npos) << e.what();
    }
    EXPECT_EQ(directory_.num_files(), files) << "something was left";
  }

  TempDir directory_;
  ConvertSummary summary_;
};

// Same tensors with the same bytes; the order may differ.
void expect_same_tensors(const io::SafetensorsReader& got, const io::SafetensorsReader& want) {
  EXPECT_EQ(got.tensors().size(), want.tensors().size());
  for (const io::TensorInfo& expected : want.tensors()) {
    const io::TensorInfo* info = got.find(expected.name);
    ASSERT_NE(info, nullptr) << expected.name;
    EXPECT_EQ(info->dtype, expected.dtype) << expected.name;
    EXPECT_EQ(info->shape, expected.shape) << expected.name;
    ASSERT_EQ(info->bytes(), expected.bytes()) << expected.name;
    EXPECT_EQ(std::memcmp(got.data(*info), want.data(expected), expected.bytes()), 0) << expected.name;
  }
}

TEST_F(Convert, EveryFormatIsWhatTheQuantiserMakes) {
  for (const Form form : {Form::kCurve, Form::kFull}) {
    const std::string plain = synth("plain", kBF16, form, "model.diffusion_model.");
    for (const WeightFormat format : kQuantised) {
      SCOPED_TRACE(weight_format_name(format));
      const Checkpoint quantised = convert(plain, format);
      expect_same_tensors(quantised.file(), io::SafetensorsReader::open(
                                                synth("expected", format, form, "model.diffusion_model.")));
      EXPECT_EQ(summary_.layers.at(weight_format_name(format)), 8);
      EXPECT_EQ(summary_.requantised, 0);
    }
  }
}

TEST_F(Convert, BytesDoNotDependOnThreads) {
  const std::string plain = synth("plain", kBF16);
  for (const WeightFormat format : kQuantised) {
    std::string first;
    for (const int threads : {1, 2, 7}) {
      convert(plain, {.rules = block_rules(format), .threads = threads});
      const std::string bytes = read_file(directory_.file("converted"));
      if (first.empty()) first = bytes;
      EXPECT_TRUE(bytes == first) << weight_format_name(format) << ", " << threads << " threads";
    }
  }
}

// One layer of eight has, rotated, one large value in each group of 16 and small ones beside it.
TEST_F(Convert, HeavyTailsGetLevelsOfTheirOwn) {
  ModelFile file(io::SafetensorsReader::open(synth("source", kBF16)));
  std::vector<float> values;
  for (int i = 0; i < 768 * 128; ++i)
    values.push_back(i % 16 == 3 ? 1.0f : 0.01f * static_cast<float>(i % 7 - 3));
  rotate_row(values, 64);
  file.set_floats(kQkv + ".weight", {768, 128}, values);
  const std::string path = write("tails", file);
  std::string first;
  for (const int threads : {1, 3}) {
    const Checkpoint made = convert(path, {.rules = block_rules(kAsymW4A8), .threads = threads});
    EXPECT_EQ(summary_.fitted, 1);
    const auto levels_of = [&](const std::string& layer) {
      return std::string(reinterpret_cast<const char*>(made.data(*made.linear(layer).codebook)),
                         16 * sizeof(float));
    };
    const std::string fixed(reinterpret_cast<const char*>(kW4A8Codebook.data()), 16 * sizeof(float));
    EXPECT_EQ(levels_of("blocks.0.attn.qkv_proj"), fixed);
    EXPECT_NE(levels_of(kQkv), fixed);
    const std::string bytes = read_file(directory_.file("converted"));
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first);
  }
}

// ---- reference files ----

class GoldenConvert : public testing::TestWithParam<const char*> {};

TEST_P(GoldenConvert, EveryCodeAndScaleIsEqual) {
  const auto path = test::golden_dir() / fmt::format("{}.t2va.bf16.safetensors", GetParam());
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there: set H3S_GOLDEN_DIR";
  const auto golden = verify::Golden::open(path.string());
  const TempDir directory;
  write_synthetic_checkpoint(directory.file("plain"), {.spec = golden.spec, .seed = golden.seed}, nullptr);
  convert_checkpoint(Checkpoint::open(directory.file("plain")), directory.file("converted"),
                     {.rules = block_rules(*writable_format(golden.format))}, nullptr);
  const auto converted = io::SafetensorsReader::open(directory.file("converted"));
  std::int64_t compared = 0;
  for (const io::TensorInfo& stored : golden.file.tensors()) {
    if (!stored.name.starts_with("w.")) continue;
    const io::TensorInfo& ours = converted.at(stored.name.substr(2));
    ASSERT_EQ(ours.bytes(), stored.bytes()) << stored.name;
    EXPECT_EQ(std::memcmp(converted.data(ours), golden.file.data(stored), stored.bytes()), 0) << stored.name;
    compared += stored.elements();
  }
  EXPECT_GT(compared, 500000);
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenConvert,
                         testing::Values("curve.int8_tensorwise", "full.int8_tensorwise",
                                         "curve.float8_e4m3fn", "curve.mxfp8", "curve.nvfp4",
                                         "curve.asym_w4a8_int8", "curve.convrot_w4a4"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// ---- other inputs ----

// Plain inputs of 16 and 32 bits that hold bf16 numbers give the same codes.
TEST_F(Convert, FromWiderPlainWeights) {
  const std::string plain = synth("plain", kBF16);
  const Checkpoint source = Checkpoint::open(plain);
  for (const WeightFormat wide : {kF16, kF32}) {
    convert(plain, {.rules = {{"*", wide}}});
    const std::string widened = directory_.file("widened");
    std::filesystem::rename(directory_.file("converted"), widened);
    const LinearSource layer = Checkpoint::open(widened).linear(kQkv);
    EXPECT_EQ(layer.format, wide);
    if (wide == kF16) continue;  // small numbers are not those of bf16 any more
    const Checkpoint quantised = convert(widened, kNvfp4);
    const Checkpoint expected = Checkpoint::open(synth("expected", kNvfp4));
    for (const char* suffix : {".weight", ".weight_scale", ".weight_scale_2"}) {
      const io::TensorInfo &a = quantised.tensor(kQkv + suffix), &b = expected.tensor(kQkv + suffix);
      EXPECT_EQ(std::memcmp(quantised.data(a), expected.data(b), b.bytes()), 0) << suffix;
    }
  }
}

TEST_F(Convert, DecodedWeightsAreTheDequantisedOnes) {
  for (const WeightFormat format : kQuantised) {
    const Checkpoint source = Checkpoint::open(synth("quantised", format));
    const Checkpoint plain = convert(source.file().path(), {.decode_others = kBF16});
    EXPECT_FALSE(plain.quantised());
    const WeightRows before(source, source.linear(kQkv)), after(plain, plain.linear(kQkv));
    std::vector<float> scratch(static_cast<std::size_t>(before.k()));
    std::vector<BF16> want(scratch.size()), got(scratch.size());
    for (std::int64_t r = 0; r < before.n(); ++r) {
      before.read(r, want, scratch);
      after.read(r, got, scratch);
      ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(BF16)), 0)
          << weight_format_name(format) << " row " << r;
    }
    EXPECT_EQ(plain.file().find(kQkv + ".weight_scale"), nullptr);
  }
}

TEST_F(Convert, WhatNoRuleNamesKeepsItsBytes) {
  ModelFile file(io::SafetensorsReader::open(synth("source", kInt8Tensorwise)));
  file.set_floats("vae.decoder", {2}, {1, 2});
  file.metadata["config"] = R"({"transformer":{"num_layers":2}})";
  const std::string path = write("source", file);
  const Checkpoint same = convert(path, kInt8Tensorwise);
  expect_same_tensors(same.file(), io::SafetensorsReader::open(path));
  EXPECT_EQ(same.file().metadata().at("config"), file.metadata["config"]);
  EXPECT_EQ(summary_.kept, same.spec().layers * 5 + 4 + 1 + 4 + 1);
}

// Tags out of metadata and out of the older fp8 key become tensors; older names become the present ones.
TEST_F(Convert, TagsBecomeTensors) {
  const std::string out = "blocks.1.attn.out_proj";
  ModelFile tagged(io::SafetensorsReader::open(synth("source", kInt8Tensorwise)));
  tagged.erase(out + ".comfy_quant");
  tagged.metadata["_quantization_metadata"] =
      fmt::format(R"({{"layers":{{"{}":{{"format":"int8_tensorwise","convrot":true}}}}}})", out);
  const Checkpoint from_metadata = convert(write("tagged", tagged), {.rules = {{kQkv, kBF16}}});
  EXPECT_EQ(from_metadata.linear(out).rotate_group, 256);
  EXPECT_EQ(from_metadata.linear(kQkv).format, kBF16);
  EXPECT_FALSE(from_metadata.file().metadata().contains("_quantization_metadata"));

  ModelFile legacy(io::SafetensorsReader::open(synth("source", kBF16)));
  legacy.set("scaled_fp8", DType::kF8E4M3, {2}, "");
  legacy.set(out + ".weight", DType::kF8E4M3, {128, 256}, "");
  legacy.set_floats(out + ".scale_weight", {}, {0.5f});
  legacy.set_floats(out + ".scale_input", {}, {4.0f});
  const Checkpoint renamed = convert(write("legacy", legacy), {.rules = {{kQkv, kNvfp4}}});
  EXPECT_EQ(renamed.linear(out).format, kFloat8E4M3);
  EXPECT_EQ(renamed.linear(out).input_scale, 4.0f);
  EXPECT_EQ(renamed.linear(out).activation, Activation::kNone);
  EXPECT_EQ(renamed.linear(kQkv).format, kNvfp4);
  EXPECT_EQ(renamed.file().find("scaled_fp8"), nullptr);
  EXPECT_NE(renamed.file().find(out + ".weight_scale"), nullptr);
}

// ---- rows in the vendor's order ----

// The tensor with its rows, in groups, put where `map` takes them from: what row_map() undoes.
void scramble(ModelFile& file, const std::string& key, const RowMap& map) {
  const std::string ordered = file.bytes(key);
  const std::size_t group = ordered.size() / map.source.size();
  std::string scrambled = ordered;
  for (std::size_t g = 0; g < map.source.size(); ++g)
    scrambled.replace(static_cast<std::size_t>(map.source[g]) * group, group, ordered, g * group, group);
  file.set(key, file.decl(key).dtype, file.decl(key).shape, scrambled);
}

ModelFile vendor_file(const io::SafetensorsReader& source, const StoredRows& stored) {
  ModelFile file(source);
  const spec::ModelSpec spec = wide_spec(Form::kFull);
  for (const Part& part : model_parts(spec)) {
    if (!is_linear(part.kind)) continue;
    const RowMap map = row_map(part.name, spec, stored);
    if (map.identity()) continue;
    for (const char* suffix : {".weight", ".weight_scale", ".weight_s_rel", ".weight_s_channel"})
      if (const io::TensorInfo* info = source.find(part.name + suffix);
          info != nullptr && info->elements() > 1)
        scramble(file, part.name + suffix, map);
  }
  return file;
}

TEST_F(Convert, TheMapIsTheOneOfTheVendor) {
  spec::ModelSpec spec;
  spec.heads = 3;
  const RowMap qkv = row_map("token_refiner.blocks.0.attn.qkv_proj", spec, {.interleaved_qkv = true});
  // Rows of the result to rows of the file: head h has q at 384 h, k at 384 h + 128, v at 384 h + 256.
  EXPECT_EQ(qkv.row(0), 0);
  EXPECT_EQ(qkv.row(128 + 5), 384 + 5);
  EXPECT_EQ(qkv.row(3 * 128), 128);
  EXPECT_EQ(qkv.row(3 * 128 + 2 * 128 + 127), 2 * 384 + 128 + 127);
  EXPECT_EQ(qkv.row(6 * 128), 256);
  EXPECT_EQ(qkv.row(9 * 128 - 1), 9 * 128 - 1);
  const RowMap fc1 = row_map("blocks.0.mlp.fc1", spec, {.up_first_fc1 = true});
  EXPECT_EQ(fc1.row(0), spec.ffn);
  EXPECT_EQ(fc1.row(spec.ffn + 1), 1);
  EXPECT_TRUE(row_map("blocks.0.mlp.fc1", spec, {.interleaved_qkv = true}).identity());
  EXPECT_TRUE(row_map("blocks.0.attn.out_proj", spec, {true, true}).identity());
}

TEST_F(Convert, RowsComeIntoOrderInEveryFormat) {
  const StoredRows stored{.interleaved_qkv = true, .up_first_fc1 = true};
  const std::string ordered = synth("ordered", kBF16, Form::kFull);
  const std::string vendor = write("vendor", vendor_file(io::SafetensorsReader::open(ordered), stored));
  expect_same_tensors(convert(vendor, {.stored = stored}).file(), io::SafetensorsReader::open(ordered));
  for (const WeightFormat format : kQuantised) {
    SCOPED_TRACE(weight_format_name(format));
    const auto expected = io::SafetensorsReader::open(synth("expected", format, Form::kFull));
    expect_same_tensors(convert(vendor, {.rules = block_rules(format), .stored = stored}).file(), expected);
    // Quantised before they were put in order: nothing is quantised again.
    const std::string early = write("early", vendor_file(expected, stored));
    expect_same_tensors(convert(early, {.stored = stored}).file(), expected);
    EXPECT_EQ(summary_.requantised, 0);
  }
}

TEST_F(Convert, FromShards) {
  const auto whole = io::SafetensorsReader::open(synth("whole", kBF16, Form::kFull));
  const ModelFile vendor = vendor_file(whole, {.interleaved_qkv = true});
  ModelFile shards[2] = {vendor, vendor};
  std::string map;
  for (std::size_t i = 0; i < whole.tensors().size(); ++i) {
    const std::string& key = whole.tensors()[i].name;
    shards[i % 2].erase(key);
    map += fmt::format(R"({}"{}":"model-{}.safetensors")", map.empty() ? "" : ",", key, 1 - i % 2);
  }
  write("model-0.safetensors", shards[0]);
  write("model-1.safetensors", shards[1]);
  const std::string index = directory_.file("model.safetensors.index.json");
  write_file(index, fmt::format(R"({{"metadata":{{}},"weight_map":{{{}}}}})", map));
  expect_same_tensors(convert(index, {.stored = {.interleaved_qkv = true}}).file(), whole);
}

// ---- rules and recipes ----

TEST_F(Convert, TheLastRuleThatMatchesDecides) {
  std::vector<LayerRule> rules = block_rules(kNvfp4);
  rules.push_back(parse_layer_rule("blocks.0.*=bf16"));
  rules.push_back(parse_layer_rule("blocks.?.mlp.fc2=int8"));
  rules.push_back(parse_layer_rule("token_refiner.*.qkv_proj=float8_e4m3fn"));
  const Checkpoint mixed = convert(synth("plain", kBF16), {.rules = rules});
  EXPECT_EQ(mixed.linear("blocks.0.attn.qkv_proj").format, kBF16);
  EXPECT_EQ(mixed.linear("blocks.1.attn.qkv_proj").format, kNvfp4);
  EXPECT_EQ(mixed.linear("blocks.0.mlp.fc2").format, kInt8Tensorwise);
  EXPECT_EQ(mixed.linear("blocks.1.mlp.fc2").format, kInt8Tensorwise);
  EXPECT_EQ(mixed.linear("token_refiner.blocks.0.attn.qkv_proj").format, kFloat8E4M3);
  EXPECT_EQ(mixed.linear("token_refiner.blocks.0.attn.out_proj").format, kBF16);
}

TEST_F(Convert, RecipesAreThoseOfPublishedFiles) {
  const auto made = [&](const char* recipe, Form form) {
    const std::string plain = synth("plain", kBF16, form);
    return convert(plain, {.rules = find_recipe(recipe)->rules(wide_spec(form))});
  };
  const std::string fc2 = "blocks.1.mlp.fc2", adaln = "blocks.1.adaln_proj.linear";
  const std::string refiner = "token_refiner.blocks.0.mlp.fc1", final_adaln = "final_layer.adaln_proj.linear";
  const Checkpoint pruned = made("int8", Form::kCurve);
  EXPECT_EQ(pruned.linear(fc2).format, kInt8Tensorwise);
  EXPECT_EQ(pruned.linear(adaln).format, kF16);
  EXPECT_EQ(pruned.linear(adaln).bias->dtype, DType::kF16);
  EXPECT_EQ(pruned.linear(final_adaln).format, kF16);
  EXPECT_EQ(pruned.linear(refiner).format, kBF16);
  const Checkpoint full = made("int8", Form::kFull);
  EXPECT_EQ(full.linear(adaln).format, kInt8Tensorwise);
  EXPECT_EQ(full.linear(final_adaln).format, kBF16);
  const Checkpoint fp8 = made("fp8", Form::kCurve);
  EXPECT_EQ(fp8.linear(kQkv).activation, Activation::kE4M3);
  EXPECT_EQ(fp8.linear(fc2).activation, Activation::kNone);
  EXPECT_EQ(fp8.tensor(fc2 + ".comfy_quant").bytes(), 63u);
  EXPECT_EQ(fp8.tensor(kQkv + ".comfy_quant").bytes(), 27u);
  EXPECT_EQ(made("w4a8", Form::kCurve).linear(refiner).format, kBF16);
  EXPECT_EQ(made("w4a8-int8-refiner", Form::kCurve).linear(refiner).format, kInt8Tensorwise);
  EXPECT_EQ(made("nvfp4", Form::kCurve).linear(fc2).format, kNvfp4);
}

TEST_F(Convert, RulesThatCannotBeFollowed) {
  const std::string plain = synth("plain", kBF16);
  const auto rules = [](const char* text) { return ConvertOptions{.rules = {parse_layer_rule(text)}}; };
  refused(plain, rules("blocks.7.*=int8"), Status::kInvalidArgument, {"no layer", "blocks.7.*"});
  refused(plain, rules("video_patch_proj=int8"), Status::kInvalidArgument,
          {"video_patch_proj", "fp32 island"});
  refused(plain, rules("condition_proj=convrot_w4a4"), Status::kInvalidArgument,
          {"condition_proj", "multiple of 64 columns"});
  for (const char* text : {"", "blocks", "=int8", "blocks=awq_w4a16", "blocks=int3"})
    EXPECT_THROW(parse_layer_rule(text), Error) << text;
}

// ---- weights that cannot be stored ----

// Codes are the only matrices of this size that are not looked at when a file is opened.
TEST_F(Convert, WeightsThatAreNoNumbers) {
  for (const char bad : {'\x7C', '\x7D'}) {  // of e5m2: infinity, NaN
    ModelFile file(io::SafetensorsReader::open(synth("source", kFloat8E5M2)));
    std::string codes = file.bytes(kQkv + ".weight");
    codes[130 * 128 + 3] = bad;
    file.set(kQkv + ".weight", DType::kF8E5M2, {768, 128}, codes);
    const std::string path = write("source", file);
    for (const WeightFormat format : kQuantised)
      if (format != kFloat8E5M2)
        refused(path, {.rules = block_rules(format)}, Status::kBadFile,
                {kQkv + ".weight", "row 130 holds a value that is no finite number"});
    for (const WeightFormat format : {kBF16, kF16, kF32})
      refused(path, {.rules = block_rules(format)}, Status::kBadFile,
              {kQkv + ".weight", bad == '\x7C' ? "holds inf" : "holds nan"});
  }
}

TEST_F(Convert, WeightsWithoutAScale) {
  ModelFile file(io::SafetensorsReader::open(synth("source", kBF16)));
  file.set(kQkv + ".weight", DType::kBF16, {768, 128}, "");
  const std::string path = write("source", file);
  for (const WeightFormat format : {kFloat8E4M3, kFloat8E5M2, kNvfp4})
    refused(path, {.rules = block_rules(format)}, Status::kBadFile,
            {kQkv + ".weight", "every value is zero", weight_format_name(format)});
  for (const WeightFormat format : {kInt8Tensorwise, kMxfp8, kAsymW4A8, kConvrotW4A4}) {
    const Checkpoint zero = convert(path, format);  // opened, so its scales are numbers
    std::vector<float> row(128, 1.0f);
    WeightRows(zero, zero.linear(kQkv)).read(0, row);
    // No level of the W4A8 codebook is zero; its smallest scale is 1e-8.
    const float most = format == kAsymW4A8 ? 1e-5f : 0.0f;
    for (const float v : row) EXPECT_LE(std::abs(v), most) << weight_format_name(format);
  }
}

TEST_F(Convert, NumbersTooLargeForFp16) {
  ModelFile file(io::SafetensorsReader::open(synth("source", kBF16)));
  file.set_floats(kQkv + ".weight", {768, 128}, std::vector<float>(768 * 128, 70000.0f));
  refused(write("source", file), {.rules = {{kQkv, kF16}}}, Status::kBadFile,
          {kQkv + ".weight", "70000 is too large for F16"});
}

TEST_F(Convert, NumbersTooLargeForBf16) {
  ModelFile file(io::SafetensorsReader::open(synth("source", kBF16)));
  file.set_floats(kQkv + ".weight", {768, 128}, std::vector<float>(768 * 128, 3.4e38f));
  refused(write("source", file), {.rules = {{kQkv, kBF16}}}, Status::kBadFile,
          {kQkv + ".weight", "3.4e+38 is too large for BF16"});
}

// A file that would not load is not left: weights that are finite, under a scale that is no scale.
TEST_F(Convert, WeightsTooLargeForAScale) {
  ModelFile file(io::SafetensorsReader::open(synth("source", kBF16)));
  file.set_floats(kQkv + ".weight", {768, 128}, std::vector<float>(768 * 128, 1e30f));
  refused(write("source", file), {.rules = block_rules(kInt8Tensorwise)}, Status::kBadFile,
          {"refused: what was made would not load", kQkv + ".weight_scale", "at most 2.81475e+14"});
}

// The bias of a layer goes with its weight.
TEST_F(Convert, BiasesTooLargeForFp16) {
  ModelFile file(io::SafetensorsReader::open(synth("source", kBF16)));
  const std::string layer = "blocks.0.adaln_proj.linear";
  const auto& shape = file.decl(layer + ".bias").shape;
  file.set_floats(layer + ".bias", shape, std::vector<float>(static_cast<std::size_t>(shape[0]), -1e5f));
  refused(write("source", file), {.rules = {{layer, kF16}}}, Status::kBadFile,
          {layer + ".bias", "-100000 is too large for F16"});
}

TEST_F(Convert, ScaledInputsStayInTheirFormat) {
  ModelFile file(io::SafetensorsReader::open(synth("source", kNvfp4)));
  file.set(kQkv + ".pre_quant_scale", DType::kBF16, {128}, "");
  const std::string path = write("source", file);
  refused(path, {.rules = block_rules(kInt8Tensorwise)}, Status::kUnsupported, {"pre_quant_scale"});
  EXPECT_NE(convert(path, kNvfp4).linear(kQkv).pre_scale, nullptr);
}

}  // namespace
}  // namespace h3s::checkpoint
