// The weight generator against the check values of its specification.
#include "checkpoint/generator.h"

#include "checkpoint/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/float16.h"

namespace h3s::checkpoint {
namespace {

constexpr std::uint64_t kSeed = 20261130;
constexpr const char* kQkv = "blocks.0.attn.qkv_proj.weight";

std::vector<float> values(const TensorGenerator& generator, std::int64_t begin, std::int64_t end) {
  std::vector<float> out(static_cast<std::size_t>(end - begin));
  generator.values(begin, end, out.data());
  return out;
}

float first_value(const char* name, const std::vector<std::int64_t>& shape) {
  return values(TensorGenerator::weight(name, shape, kSeed), 0, 1).front();
}

float uniform(const char* name, std::uint64_t i) {
  return 2.0f * (static_cast<float>(random_bits24(fnv1a64(name) ^ kSeed, i)) * 0x1p-24f) - 1.0f;
}

TEST(Generator, HashAndBitsOfTheSpecification) {
  EXPECT_EQ(fnv1a64(kQkv), 0x3328ba3c087be7a2u);
  const std::uint64_t base = fnv1a64(kQkv) ^ kSeed;
  constexpr std::uint32_t kExpected[] = {6633262, 1088189, 8619501, 5080701, 3982530};
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(random_bits24(base, i), kExpected[i]) << "element " << i;
  EXPECT_EQ(random_bits24(base, 123456), 8771607u);
}

TEST(Generator, InputBitsOfTheSpecification) {
  const std::uint64_t base = fnv1a64("t2va.video") ^ kSeed;
  constexpr std::uint32_t kExpected[] = {13345076, 4060980, 409113, 892067, 1981100};
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(random_bits24(base, i), kExpected[i]) << "element " << i;
}

TEST(Generator, EachNameHasItsRule) {
  const float u_norm = uniform("blocks.0.norm1.weight", 0);
  EXPECT_EQ(first_value("blocks.0.norm1.weight", {256}), 1.0f + 0.1f * u_norm);
  EXPECT_EQ(first_value("blocks.0.attn.q_norm.weight", {128}),
            1.0f + 0.1f * uniform("blocks.0.attn.q_norm.weight", 0));
  EXPECT_EQ(first_value("video_patch_proj.bias", {256}), 0.02f * uniform("video_patch_proj.bias", 0));
  EXPECT_EQ(first_value("adaln_t_table", {17, 8}), uniform("adaln_t_table", 0));
  EXPECT_EQ(first_value("blocks.0.adaln_proj.linear.weight", {4608, 8}),
            uniform("blocks.0.adaln_proj.linear.weight", 0) * static_cast<float>(0.5 * std::sqrt(3.0 / 8)));
  EXPECT_EQ(first_value(kQkv, {768, 256}), uniform(kQkv, 0) * static_cast<float>(std::sqrt(3.0 / 256)));
}

TEST(Generator, RopeFrequencies) {
  const auto rope = values(TensorGenerator::weight("rope.inv_freq", {16}, kSeed), 0, 16);
  EXPECT_EQ(rope[0], 1.0f);
  EXPECT_EQ(rope[1], 0.5623413324356079f);
  EXPECT_EQ(rope[2], 0.3162277638912201f);
  EXPECT_EQ(rope[15], 0.00017782794020604342f);
}

TEST(Generator, AnyRangeEqualsTheWhole) {
  const auto generator = TensorGenerator::weight(kQkv, {768, 256}, kSeed);
  const auto whole = values(generator, 0, 5000);
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 2}, {31, 33}, {1023, 1025}, {4000, 5000}, {7, 7}})
    EXPECT_EQ(values(generator, begin, end), std::vector<float>(whole.begin() + begin, whole.begin() + end));
}

TEST(Generator, StoredValuesAreTheRoundedOnes) {
  const auto generator = TensorGenerator::weight(kQkv, {768, 256}, kSeed);
  const auto whole = values(generator, 5, 4104);
  std::vector<BF16> bf16(whole.size());
  generator.stored(DType::kBF16, 5, 4104, reinterpret_cast<std::byte*>(bf16.data()));
  for (std::size_t i = 0; i < whole.size(); ++i)
    ASSERT_EQ(bf16[i].bits, to_bf16(whole[i]).bits) << "element " << i;
  std::vector<float> f32(whole.size());
  generator.stored(DType::kF32, 5, 4104, reinterpret_cast<std::byte*>(f32.data()));
  EXPECT_EQ(f32, whole);
}

TEST(Generator, InputsAreBf16Numbers) {
  for (const float v : values(TensorGenerator::input("t2va.video", kSeed), 0, 1000))
    EXPECT_EQ(v, round_to<BF16>(v));
}

TEST(Generator, RealInt8FileHasTheSizeOfItsParts) {
  const spec::ModelSpec real{.time_dim = 8, .curve_grid = 1025};
  const auto tensors = checkpoint_tensors(real, WeightFormat::kInt8Tensorwise);
  // The published pruned int8 file has 932 tensors of the same names and shapes.
  EXPECT_EQ(tensors.size(), 932u);
  EXPECT_EQ(LayerEncoder(WeightFormat::kInt8Tensorwise, 1, 256, 256, 0).tag().size(), 72u);
}

}  // namespace
}  // namespace h3s::checkpoint
