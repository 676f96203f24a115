#include "sample/condition.h"

#include <gtest/gtest.h>

#include "inputs_file.h"
#include "sample/randn.h"

namespace h3s::sample {
namespace {

using test::floats;
using test::InputsFile;

InputsFile& add_references(InputsFile& file) {
  file.about["references"] = {{{"kind", "image"}}, {{"kind", "video"}}};
  file.tensors["reference.0.latent"] = floats({1, 3, 1, 4, 6}, -1.0f);
  file.tensors["reference.1.latent"] = floats({1, 3, 2, 2, 4}, 0.5f);
  file.tensors["reference.1.audio"] = floats({1, 5, 2, 3}, 2.0f);
  return file;
}

class ConditionRowsTest : public testing::Test {
 protected:
  ConditionRowsTest() : inputs_(Inputs::open(add_references(file_).write(), test::small_model())) {}

  ConditionRows make(const ConditionOptions& options) {
    return make_condition_rows(inputs_, options, accountant_);
  }

  static std::vector<float> values(const mem::Buffer& buffer) {
    const auto* data = buffer.as<float>();
    return {data, data + buffer.bytes() / static_cast<std::int64_t>(sizeof(float))};
  }

  // The rows of the two visual conditions without noise.
  std::vector<float> clean_visual() { return values(make({.visual_aug = 1.0, .audio_aug = 1.0}).visual); }

  InputsFile file_;
  mem::Accountant accountant_{mem::make_heap_allocator(true)};
  Inputs inputs_;
};

constexpr std::int64_t kImageValues = 2 * 3 * 12, kVideoValues = 2 * 2 * 12;

TEST_F(ConditionRowsTest, AreThePatchifiedLatentsWithoutNoise) {
  const std::vector<float> rows = clean_visual();
  ASSERT_EQ(rows.size(), static_cast<std::size_t>(kImageValues + kVideoValues));
  std::vector<float> latent(3 * 4 * 6), expected(kImageValues);
  std::memcpy(latent.data(), file_.tensors["reference.0.latent"].data.data(), latent.size() * sizeof(float));
  spec::patchify_rows(latent.data(), {3, 1, 4, 6}, 0, 6, expected.data());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), rows.begin()));
}

TEST_F(ConditionRowsTest, EveryConditionRestartsTheSameNoise) {
  const std::vector<float> clean = clean_visual();
  const std::vector<float> rows = values(make({.seed = 9, .visual_aug = 0.999}).visual);
  std::vector<float> noise(kImageValues);
  const auto expect_noisy = [&](std::int64_t first, std::int64_t count) {
    TorchGenerator(9).randn(noise.data(), count);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(first + i);
      EXPECT_EQ(rows[at],
                0.999f * clean[at] + static_cast<float>(1.0 - 0.999) * noise[static_cast<std::size_t>(i)]);
    }
  };
  expect_noisy(0, kImageValues);
  expect_noisy(kImageValues, kVideoValues);
}

TEST_F(ConditionRowsTest, AudioNoiseUsesTheNextSeed) {
  const std::vector<float> clean = values(make({.seed = 9}).audio);
  const std::vector<float> rows = values(make({.seed = 9, .audio_aug = 0.5}).audio);
  ASSERT_EQ(rows.size(), 30u);
  std::vector<float> noise(rows.size());
  TorchGenerator(10).randn(noise.data(), 30);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], 0.5f * clean[i] + 0.5f * noise[i]);
}

TEST_F(ConditionRowsTest, LeaveOnlyTheRowsBehind) {
  const ConditionRows rows = make({.visual_aug = 0.9, .audio_aug = 0.9});
  const auto granules = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  EXPECT_EQ(accountant_.current_bytes(mem::Space::kHost),
            granules(rows.visual.bytes()) + granules(rows.audio.bytes()));
}

TEST(ConditionRowsWithoutConditions, HoldNoMemory) {
  InputsFile file;
  const Inputs inputs = Inputs::open(file.write(), test::small_model());
  mem::Accountant accountant(mem::make_heap_allocator());
  const ConditionRows rows = make_condition_rows(inputs, {}, accountant);
  EXPECT_EQ(rows.visual.data(), nullptr);
  EXPECT_EQ(accountant.peak_bytes(mem::Space::kHost), 0);
}

}  // namespace
}  // namespace h3s::sample
