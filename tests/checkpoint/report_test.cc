// What `inspect` reports, also about files that do not load.
#include "checkpoint/report.h"

#include <gtest/gtest.h>

#include <limits>

#include <algorithm>

#include "file_fixtures.h"
#include "model_file.h"

namespace h3s::checkpoint {
namespace {

constexpr auto kInt8 = WeightFormat::kInt8Tensorwise;

class Inspect : public testing::Test {
 protected:
  Report report(const ModelFile& file, const io::ReadOptions& options = {}) {
    file.write(path_);
    return describe(path_, options);
  }
  TempDir directory_;
  std::string path_ = directory_.file("model.safetensors");
};

std::size_t findings(const Report& report, const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(report.findings.begin(), report.findings.end(),
                    [&](const Finding& finding) { return finding.text.find(text) != std::string::npos; }));
}

std::size_t warnings(const Report& report) {
  return static_cast<std::size_t>(
      std::count_if(report.findings.begin(), report.findings.end(),
                    [](const Finding& finding) { return finding.severity == Severity::kWarning; }));
}

const FormatCount* find(const Report& report, const std::string& kind, const std::string& format) {
  for (const FormatCount& entry : report.formats)
    if (entry.kind == kind && entry.format == format) return &entry;
  return nullptr;
}

TEST_F(Inspect, AFileThatLoads) {
  const Report r = report(ModelFile(Form::kCurve, kInt8, "diffusion_model."));
  EXPECT_FALSE(r.refusal) << *r.refusal;
  EXPECT_EQ(r.prefix, "diffusion_model.");
  EXPECT_TRUE(r.spec == small_spec(Form::kCurve));
  EXPECT_TRUE(r.quantised);
  EXPECT_EQ(warnings(r), 0u);
  EXPECT_EQ(findings(r, "whether rows of qkv_proj are all q, all k, all v or interleaved per head"), 1u);
  EXPECT_EQ(findings(r, "whether rows of fc1 are gate first or up first"), 1u);
}

TEST_F(Inspect, CountsAndBytesByKind) {
  const Report r = report(ModelFile(Form::kFull, kInt8));
  const FormatCount* qkv = find(r, "qkv", "int8_tensorwise");
  ASSERT_NE(qkv, nullptr);
  EXPECT_EQ(qkv->count, 3);
  const std::uint64_t tag_bytes =
      std::string(R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16})").size();
  EXPECT_EQ(qkv->bytes, 3 * (384 * 32 + 384 * 4 + tag_bytes));
  ASSERT_NE(find(r, "refiner", "bf16"), nullptr);
  EXPECT_EQ(find(r, "refiner", "bf16")->count, 4);
  EXPECT_EQ(find(r, "island", "fp32")->count, 6);
  EXPECT_EQ(find(r, "adaln", "bf16")->count, 4);
  EXPECT_EQ(find(r, "condition", "bf16")->count, 1);
  EXPECT_EQ(find(r, "norm", "bf16")->count, 3 * 4 + 4 + 2);
  EXPECT_EQ(find(r, "table", "fp32")->count, 1);
  EXPECT_EQ(std::count_if(r.formats.begin(), r.formats.end(),
                          [](const FormatCount& e) { return e.kind == "other"; }),
            0);
  std::uint64_t bytes = 0;
  for (const FormatCount& entry : r.formats) bytes += entry.bytes;
  EXPECT_LT(bytes, r.file_bytes);
}

TEST_F(Inspect, AFormatThatCannotRunIsDescribed) {
  ModelFile file(Form::kCurve, kInt8);
  file.set_text("blocks.1.attn.qkv_proj.comfy_quant", R"({"format":"awq_w4a16"})");
  const Report r = report(file);
  ASSERT_TRUE(r.refusal);
  EXPECT_NE(r.refusal->find("awq_w4a16"), std::string::npos);
  EXPECT_TRUE(r.spec);
  ASSERT_NE(find(r, "qkv", "awq_w4a16"), nullptr);
  EXPECT_EQ(find(r, "qkv", "awq_w4a16")->count, 1);
  EXPECT_EQ(find(r, "qkv", "int8_tensorwise")->count, 2);
}

// As the zeros of an interrupted download are one: the other layers are still what they are.
TEST_F(Inspect, ABrokenTagIsNotThatOfOtherLayers) {
  ModelFile file(Form::kCurve, kInt8);
  file.set("blocks.1.attn.qkv_proj.comfy_quant", DType::kU8, {27}, std::string(27, '\0'));
  const Report r = report(file);
  EXPECT_NE(r.refusal.value_or("").find("NUL"), std::string::npos);
  EXPECT_EQ(find(r, "qkv", "int8_tensorwise")->count, 2);
  ASSERT_NE(find(r, "qkv", "broken tag"), nullptr);
  EXPECT_EQ(findings(r, "unknown keys"), 0u);
  EXPECT_TRUE(r.quantised);
}

// Every key is named, not the first alone.
TEST_F(Inspect, ValuesThatAreNoNumbers) {
  ModelFile file(Form::kCurve, kInt8);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  file.set_floats("blocks.2.norm1.weight", {32}, std::vector<float>(32, nan));
  file.set_floats("final_layer.norm.weight", {32}, std::vector<float>(32, nan));
  const Report r = report(file);
  EXPECT_NE(r.refusal.value_or("").find("blocks.2.norm1.weight: value 0 is nan"), std::string::npos);
  EXPECT_EQ(findings(r, "2 tensors hold NaN or infinity: blocks.2.norm1.weight, final_layer.norm.weight"),
            1u);
}

TEST_F(Inspect, SuspiciousThings) {
  ModelFile file(Form::kCurve, kInt8);
  file.set_floats("blocks.1.attn.qkv_proj.weight_scale", {}, {0.0f});
  file.set("blocks.0.mlp.extra", DType::kBF16, {40000}, "");
  file.set("blocks.0.attn.to_gate_compress.weight", DType::kBF16, {4}, "");
  std::string rope = file.bytes("rope.inv_freq");
  rope[0] ^= 1;
  file.set("rope.inv_freq", DType::kF32, {16}, rope);
  file.metadata["config"] = "{}";
  const Report r = report(file);
  EXPECT_TRUE(r.refusal);
  EXPECT_EQ(findings(r, "1 unknown keys are ignored: blocks.0.mlp.extra"), 1u);
  EXPECT_EQ(findings(r, "1 scale tensors hold zero"), 1u);
  EXPECT_EQ(findings(r, "1 tensors end in a page of zeros"), 1u);
  EXPECT_EQ(findings(r, "attention options"), 1u);
  EXPECT_EQ(findings(r, "rope.inv_freq differs"), 1u);
  EXPECT_EQ(findings(r, "metadata `config`"), 1u);
}

TEST_F(Inspect, GapsAreInTheRefusal) {
  ModelFile file;
  for (const std::string& key : file.keys())
    if (key.rfind("blocks.1.", 0) == 0) file.erase(key);
  const Report r = report(file);
  EXPECT_NE(r.refusal.value_or("").find("gap"), std::string::npos);
  EXPECT_FALSE(r.spec);
  EXPECT_EQ(find(r, "qkv", "bf16")->count, 2);
}

TEST_F(Inspect, TrailingBytes) {
  ModelFile().write(path_);
  write_file(path_, read_file(path_) + "\nL2P_bypass_");
  const Report strict = describe(path_, {});
  EXPECT_NE(strict.refusal.value_or("").find("12 bytes follow"), std::string::npos);
  EXPECT_TRUE(strict.spec);
  const Report lenient = describe(path_, {.allow_trailing_bytes = true});
  EXPECT_FALSE(lenient.refusal);
  EXPECT_EQ(findings(lenient, "12 bytes follow the last tensor"), 1u);
}

TEST_F(Inspect, FilesWithoutAnythingToDescribe) {
  write_file(path_, "version https://git-lfs.github.com/spec/v1\n");
  const Report r = describe(path_, {});
  EXPECT_NE(r.refusal.value_or("").find("git lfs pull"), std::string::npos);
  EXPECT_EQ(r.file_bytes, std::filesystem::file_size(path_));
  EXPECT_TRUE(r.formats.empty());
  expect_refused([&] { describe(directory_.file("absent"), {}); }, Status::kIo, directory_.file("absent"),
                 {});
}

}  // namespace
}  // namespace h3s::checkpoint
