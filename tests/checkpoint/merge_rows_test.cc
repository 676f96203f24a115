// The vector code of a merge equals plain loops bit for bit, on every instruction set.
#include "checkpoint/merge_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "checkpoint/quantize_int8.h"
#include "each_target.h"
#include "hwy/aligned_allocator.h"

namespace h3s::checkpoint {
namespace {

std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

template <typename T>
std::vector<T> numbers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(from_float<T>(normal(random)));
  return out;
}

struct RowCase {
  std::int64_t k, group;
};
constexpr RowCase kRows[] = {{1, 0},   {15, 0},   {33, 0},    {4, 4},     {20, 4},
                             {48, 16}, {192, 64}, {256, 256}, {1280, 256}};

TEST(MergeRows, DequantisesInt8AsThePlainLoop) {
  for_each_target([] {
    for (const auto& [k, group] : kRows) {
      std::vector<std::int8_t> codes;
      for (const float v : numbers<float>(k, 1))
        codes.push_back(static_cast<std::int8_t>(std::clamp(v * 60, -128.0f, 127.0f)));
      std::vector<float> scratch(size(k));
      std::vector<BF16> got(size(k)), want(size(k));
      dequantize_int8_row(codes, 0.0123f, group, want, scratch);
      dequantize_int8_row_fast(codes, 0.0123f, group, got, scratch);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), size(2 * k)), 0) << k << " columns, group " << group;
    }
  });
}

// The counter passes 2^32 within a row, and lies beyond it.
TEST(MergeRows, DrawsInt8CodesAsThePlainLoop) {
  for_each_target([] {
    for (const auto& [k, group] : kRows)
      for (const std::uint64_t first :
           {std::uint64_t{0}, (std::uint64_t{1} << 32) - 107, std::uint64_t{5} << 33}) {
        const std::vector<BF16> row = numbers<BF16>(k, 2);
        std::vector<float> scratch(size(k));
        std::vector<std::int8_t> got(size(k)), want(size(k));
        const float want_scale = quantize_int8_row(row, group, want, scratch, 99, first);
        EXPECT_EQ(draw_int8_row(row, group, 99, first, got, scratch), want_scale);
        EXPECT_EQ(got, want) << k << " columns, group " << group << ", element " << first;
      }
    const std::vector<BF16> zeros(64, BF16{0});
    std::vector<float> scratch(64);
    std::vector<std::int8_t> codes(64, 1);
    EXPECT_EQ(draw_int8_row(zeros, 16, 99, 0, codes, scratch), 1e-30f);
    EXPECT_EQ(codes, std::vector<std::int8_t>(64, 0));
  });
}

TEST(MergeRows, TheLargestMagnitudeIsThatOfAnyPlace) {
  for_each_target([] {
    for (const std::int64_t k : {1, 15, 31, 32, 33, 64, 100})
      for (std::int64_t at = 0; at < k; ++at) {
        std::vector<BF16> row(size(k), to_bf16(1.0f));
        for (const float value : {-2.0f, -INFINITY, NAN}) {
          row[size(at)] = to_bf16(value);
          EXPECT_EQ(largest_bf16(row).bits, to_bf16(value).bits & 0x7FFF) << k << " columns, at " << at;
        }
      }
  });
}

// A tile with two pairs, of which the second changes rows in the middle alone.
template <typename W, typename A>
void expect_plain_loop(std::int64_t rows, std::int64_t k, bool bf16_steps, bool bf16_result) {
  constexpr std::int64_t kRanks[] = {7, 20};
  constexpr float kScales[] = {0.75f, -1.3f};
  const std::int64_t stride = k + 5;
  auto weights = numbers<W>(rows * stride, 3);
  std::vector<std::vector<A>> down;
  std::vector<std::vector<float>> up;
  std::vector<TilePair> pairs;
  for (int p = 0; p < 2; ++p) {
    const std::int64_t begin = p == 0 ? 0 : rows / 3, end = p == 0 ? rows : (rows * 2 + 2) / 3;
    down.push_back(numbers<A>(kRanks[p] * k, 4));
    up.push_back(numbers<float>((end - begin) * kRanks[p], 5));
    if (bf16_steps)
      for (float& v : up.back()) v = round_to<BF16>(v);
    pairs.push_back({.rank = kRanks[p], .scale = kScales[p], .begin = begin, .end = end});
  }
  const auto dtype = []<typename T>(T) {
    return std::is_same_v<T, BF16> ? DType::kBF16 : std::is_same_v<T, F16> ? DType::kF16 : DType::kF32;
  };
  for (std::size_t p = 0; p < 2; ++p) {
    pairs[p].down = reinterpret_cast<const std::byte*>(down[p].data());
    pairs[p].down_dtype = dtype(A{});
    pairs[p].up = up[p].data();
  }
  auto want = weights;
  const auto bf = [&](float v) { return bf16_steps ? round_to<BF16>(v) : v; };
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < k; ++c) {
      float w = to_float(want[size(r * stride + c)]);
      for (std::size_t p = 0; p < 2; ++p) {
        const TilePair& pair = pairs[p];
        if (r < pair.begin || r >= pair.end) continue;
        float sum = 0;
        for (std::int64_t j = 0; j < pair.rank; ++j)
          sum = std::fma(pair.up[(r - pair.begin) * pair.rank + j], bf(to_float(down[p][size(j * k + c)])),
                         sum);
        w = bf(w + bf(pair.scale * bf(sum)));
      }
      want[size(r * stride + c)] = from_float<W>(bf16_result ? round_to<BF16>(w) : w);
    }
  const auto panel = hwy::AllocateAligned<float>(size(20 * kMergePanelColumns));
  const auto cells = hwy::AllocateAligned<float>(size(rows * kMergePanelColumns));
  add_pairs({.weights = weights.data(),
             .dtype = dtype(W{}),
             .rows = rows,
             .k = k,
             .stride = stride,
             .pairs = pairs,
             .bf16_steps = bf16_steps,
             .bf16_result = bf16_result,
             .panel = panel.get(),
             .cells = cells.get()});
  EXPECT_EQ(std::memcmp(weights.data(), want.data(), weights.size() * sizeof(W)), 0)
      << rows << " rows, " << k << " columns, steps " << bf16_steps << ", result " << bf16_result;
}

TEST(MergeRows, AddPairsAsThePlainLoop) {
  for_each_target([] {
    for (const std::int64_t rows : {1, 3, 8, 9, 32})
      for (const std::int64_t k : {1, 15, 16, 47, 48, 49, 131}) {
        expect_plain_loop<BF16, BF16>(rows, k, true, false);
        expect_plain_loop<BF16, F16>(rows, k, true, false);
        expect_plain_loop<BF16, float>(rows, k, true, false);
        expect_plain_loop<BF16, BF16>(rows, k, false, true);
        expect_plain_loop<float, float>(rows, k, false, false);
        expect_plain_loop<float, BF16>(rows, k, false, true);
      }
  });
}

}  // namespace
}  // namespace h3s::checkpoint
