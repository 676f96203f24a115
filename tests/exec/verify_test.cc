// `verify` passes the reference files, and fails when a single value or plan is wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "base/error.h"
#include "exec/engine_fixture.h"
#include "verify/golden.h"
#include "verify/verify.h"

namespace h3s::test {
namespace {

class GoldenFiles : public testing::TestWithParam<const char*> {};

TEST_P(GoldenFiles, Pass) {
  const std::string path = std::string(H3S_GOLDEN_DIR) + "/" + GetParam() + ".safetensors";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const verify::Report report = verify::verify_golden(path, verify::plan_list("all"), {});
  EXPECT_TRUE(report.skipped.empty());
  EXPECT_GE(report.checks.size(), 8u);
  for (const verify::Check& c : report.checks)
    EXPECT_TRUE(c.ok) << c.name << ": error " << c.our_error << " stock " << c.stock_error << " distance "
                      << c.distance << " rule " << c.rule;
  for (const verify::PlanResult& p : report.plans)
    EXPECT_TRUE(p.equal) << p.plan.describe() << ": " << p.difference;
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenFiles,
                         testing::Values("curve.bf16.t2va.fp32", "curve.bf16.t2va.bf16",
                                         "curve.bf16.ref2va.fp32", "curve.bf16.ref2va.bf16",
                                         "full.bf16.t2va.fp32", "full.bf16.t2va.bf16", "full.bf16.fl2va.fp32",
                                         "full.bf16.fl2va.bf16", "curve.int8_tensorwise.t2va.bf16",
                                         "full.int8_tensorwise.t2va.bf16", "curve.float8_e4m3fn.t2va.bf16",
                                         "curve.mxfp8.t2va.bf16", "curve.nvfp4.t2va.bf16",
                                         "curve.asym_w4a8_int8.t2va.bf16", "curve.convrot_w4a4.t2va.bf16"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// A file of the reference format with one thing wrong.
class Hostile : public testing::Test {
 protected:
  Hostile() {
    metadata_ = {{"compute", "torch.float32"},
                 {"seed", "1"},
                 {"sigma", "0.5"},
                 {"sizes", "[2,1,2,2,1]"},
                 {"config",
                  R"({"hidden_size":128,"num_layers":1,"token_refiner_num_layers":1,"num_attention_heads":1,)"
                  R"("ffn_hidden_size":128,"text_dim":8,"time_embed_dim":8,"adaln_curve_grid":3})"}};
    shapes_ = {{"text_in", {1, 2, 8}}, {"video_in", {1, 24, 1, 2, 2}}, {"audio_in", {1, 32, 2, 1}}};
  }

  std::string refusal() {
    const std::string path = testing::TempDir() + "hostile.safetensors";
    std::vector<io::TensorDecl> decls;
    std::uint64_t bytes = 0;
    for (const auto& [name, shape] : shapes_) {
      decls.push_back({name, DType::kF32, shape});
      std::uint64_t elements = 1;
      for (const std::int64_t d : shape) elements *= static_cast<std::uint64_t>(d);
      bytes += elements * sizeof(float);
    }
    io::SafetensorsWriter writer(path, decls, metadata_);
    writer.write(std::vector<std::byte>(bytes).data(), bytes);
    writer.finish();
    try {
      verify::Golden::open(path);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  }

  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
};

TEST_F(Hostile, TheFileItselfIsAccepted) {
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(Hostile, TensorsThatDoNotFitTheSizes) {
  for (const char* name : {"text_in", "video_in", "audio_in"})
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {0}, {1, 2}}) {
      const auto good = std::exchange(shapes_[name], shape);
      EXPECT_NE(refusal().find(name), std::string::npos) << refusal();
      shapes_[name] = good;
    }
}

TEST_F(Hostile, ConditionLatentsOfTheWrongRank) {
  for (const char* name : {"cond.kf0", "cond.img", "cond.vid", "cond.aud"}) {
    shapes_[name] = {};
    EXPECT_NE(refusal().find(name), std::string::npos) << refusal();
    shapes_.erase(name);
  }
}

TEST_F(Hostile, MetadataOfTheWrongType) {
  for (const char* key : {"seed", "sigma", "sizes", "config"})
    for (const char* text : {"null", "[]", "\"a\"", "[1,2]", "{"}) {
      const std::string good = std::exchange(metadata_[key], text);
      EXPECT_NE(refusal(), "accepted") << key << " = " << text;
      metadata_[key] = good;
    }
  for (const char* text :
       {"[2,1,2,2,1000]", "[2,1,2,2,0]", "[2,1,2,2,99999999999]", "[2,65536,8192,8192,1]"}) {
    metadata_["sizes"] = text;
    EXPECT_NE(refusal(), "accepted") << text;
  }
}

std::vector<float> ramp(std::size_t n, float scale) {
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = scale * std::sin(static_cast<float>(i));
  return v;
}

TEST(Rules, RatioOutsideItsToleranceFails) {
  const auto truth = ramp(4000, 1);
  auto stored = truth, ours = truth;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    stored[i] += 0.001f * (i % 2 ? 1.0f : -1.0f);
    ours[i] += 0.0011f * (i % 2 ? 1.0f : -1.0f);
  }
  EXPECT_FALSE(verify::check_ratio("x", ours, stored, truth, 1.0).ok);
  EXPECT_TRUE(verify::check_ratio("x", stored, stored, truth, 1.0).ok);
}

TEST(Rules, AFarResultOfTheRightErrorFails) {
  const auto truth = ramp(4000, 1);
  auto stored = truth, ours = truth;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    stored[i] += 0.001f;
    ours[i] -= 0.001f;
  }
  EXPECT_FALSE(verify::check_ratio("x", ours, stored, truth, verify::kSharedRoundings).ok);
}

TEST(Rules, NaNFails) {
  auto ours = ramp(100, 1);
  const auto stored = ours;
  ours[3] = NAN;
  EXPECT_FALSE(verify::check_f32("x", ours, stored, 1e-6).ok);
  EXPECT_FALSE(verify::check_ratio("x", ours, stored, ramp(100, 1.001f), 1).ok);
  EXPECT_FALSE(verify::check_equal("x", ours, stored).ok);
}

TEST(Rules, OneDifferingBitIsFound) {
  verify::Capture a;
  a.tensors["block0"] = ramp(64, 1);
  verify::Capture b = a;
  EXPECT_EQ(first_difference(a, b), "");
  b.tensors["block0"][17] = std::nextafter(b.tensors["block0"][17], 2.0f);
  EXPECT_NE(first_difference(a, b).find("block0[17]"), std::string::npos);
  b = a;
  b.tensors["block0"][0] = -0.0f;  // equal as a number, not as bits
  EXPECT_NE(first_difference(a, b), "");
}

TEST(Rules, ModelPlansAreCompared) {
  const CheckpointFile file(small_spec(), true);
  const std::vector<verify::NamedPlan> plans = verify::plan_list("some");
  const verify::Report report = verify::verify_model(file.get(), {}, plans, {});
  EXPECT_TRUE(report.ok());
  EXPECT_GE(report.plans.size(), 8u);
  EXPECT_EQ(report.plans.size(), plans.size());
}

}  // namespace
}  // namespace h3s::test
