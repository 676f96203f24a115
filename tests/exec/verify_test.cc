// `verify` passes the reference files, and fails when a single value or plan is wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "exec/engine_fixture.h"
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
                                         "full.int8_tensorwise.t2va.bf16"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

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
  const verify::Report report = verify::verify_model(file.path(), {}, verify::plan_list("some"), {});
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.plans.size(), 8u);
}

}  // namespace
}  // namespace h3s::test
