#include "sample/randn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "io/safetensors.h"
#include "spec/golden_dir.h"

namespace h3s::sample {
namespace {

std::vector<float> draw(TorchGenerator& generator, std::int64_t n) {
  std::vector<float> out(static_cast<std::size_t>(n));
  generator.randn(out.data(), n);
  return out;
}

std::vector<float> draw(std::uint64_t seed, std::int64_t n) {
  TorchGenerator generator(seed);
  return draw(generator, n);
}

class TorchVectors : public testing::Test {
 protected:
  void SetUp() override {
    const auto path = test::golden_dir() / "randn.safetensors";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no reference vectors at " << path;
    file_.emplace(io::SafetensorsReader::open(path.string()));
  }

  // Groups of 16 are float32 arithmetic in PyTorch's order: equal bits. Fewer are binary64 through the C
  // library, rounded once: the library's last bit can only show in a rounding tie, so one float32 step is
  // allowed.
  void expect_equal(const io::TensorInfo& info, const std::vector<float>& actual) {
    std::vector<float> expected(static_cast<std::size_t>(info.elements()));
    std::memcpy(expected.data(), file_->data(info), info.bytes());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected.size() >= 16) {
        EXPECT_EQ(actual[i], expected[i]) << info.name << " element " << i;
      } else {
        EXPECT_FLOAT_EQ(actual[i], expected[i]) << info.name << " element " << i;
      }
    }
  }

  std::optional<io::SafetensorsReader> file_;
};

TEST_F(TorchVectors, EverySeedAndSize) {
  int num_checked = 0;
  for (const io::TensorInfo& info : file_->tensors()) {
    const std::size_t dot = info.name.find(".n");
    if (dot == std::string::npos) continue;
    const std::uint64_t seed = std::stoull(info.name.substr(std::strlen("seed"), dot));
    expect_equal(info, draw(seed, info.elements()));
    ++num_checked;
  }
  EXPECT_GE(num_checked, 40);
}

TEST_F(TorchVectors, TwoCallsOfOneGenerator) {
  TorchGenerator generator(7);
  std::vector<float> values = draw(generator, 24);
  const std::vector<float> rest = draw(generator, 10);
  values.insert(values.end(), rest.begin(), rest.end());
  expect_equal(file_->at("seed7.two_calls"), values);
}

TEST(TorchGenerator, OnlyTheLowWordOfTheSeedCounts) {
  EXPECT_EQ(draw((std::uint64_t{5} << 32) + 42, 20), draw(42, 20));
}

TEST(TorchGenerator, StateContinuesTheStream) {
  for (const std::int64_t first : {3, 4, 16, 31}) {  // an odd scalar draw leaves half a pair behind
    TorchGenerator generator(99);
    draw(generator, first);
    TorchGenerator restored = TorchGenerator::restore(generator.save());
    EXPECT_EQ(draw(restored, 5), draw(generator, 5)) << first;
    EXPECT_EQ(draw(restored, 40), draw(generator, 40)) << first;
  }
}

TEST(TorchGenerator, RefusesABrokenState) {
  EXPECT_THROW(TorchGenerator::restore("1 2 3"), Error);
  EXPECT_THROW(TorchGenerator::restore(""), Error);
}

TEST(TorchGenerator, IsStandardNormal) {
  constexpr std::int64_t kCount = 1 << 20;
  double sum = 0, squares = 0;
  for (const float x : draw(1, kCount)) {
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += double{x} * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 5.0 / std::sqrt(double{kCount}));  // five standard errors
  EXPECT_NEAR(squares / kCount, 1.0, 5.0 * std::sqrt(2.0 / kCount));
}

}  // namespace
}  // namespace h3s::sample
