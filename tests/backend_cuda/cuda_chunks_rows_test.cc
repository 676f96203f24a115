// Row ops and quantisers: any chunks of rows have the bits of the whole, at every size of kSizes.
#include <fmt/format.h>

#include <algorithm>

#include "backend_cuda/chunks.h"
#include "kernels/linear.h"
#include "kernels/row_ops.h"

namespace h3s::test {
namespace {

using kernels::ModSegment;

constexpr std::int64_t kRows = 4099;  // the largest total
constexpr std::int64_t kC = 96;

template <typename T>
std::string named(const std::string& op) {
  return fmt::format("{} {}", op, dtype_name(kDTypeOf<T>));
}

template <typename T>
T* row(void* base, std::int64_t index, std::int64_t columns) {
  return static_cast<T*>(base) + index * columns;
}

// Segments of ragged lengths, five table rows in turn.
std::vector<ModSegment> ragged_segments() {
  std::vector<ModSegment> segments;
  for (std::int64_t start = 0, i = 0; start < kRows; start = segments.back().stop, ++i)
    segments.push_back({start, std::min(kRows, start + 7 + i * 37 % 500), i % 5});
  return segments;
}

template <typename T>
struct Modulated {
  Modulated() : segments(ragged_segments()), table(random_values<T>(5 * 2 * kC, 9)) {}
  kernels::Modulation from(std::int64_t token) const {
    return {segments.data(), static_cast<std::int64_t>(segments.size()), token, table.data(), 2 * kC};
  }
  std::vector<ModSegment> segments;
  OnDevice<T> table;
};

template <typename T>
class RowChunks : public testing::Test {};
using RowTypes = testing::Types<BF16, float>;
TYPED_TEST_SUITE(RowChunks, RowTypes);

TYPED_TEST(RowChunks, RmsNorm) {
  using T = TypeParam;
  const OnDevice<T> x(random_values<T>(kRows * kC, 1));
  const OnDevice<float> weight(random_values<float>(kC, 2));
  const Modulated<T> mod;
  for (const bool modulate : {false, true})
    expect_chunks_equal_whole(
        named<T>(modulate ? "rms_norm, modulated" : "rms_norm"), {kC * std::int64_t{sizeof(T)}},
        [&](std::int64_t begin, std::int64_t rows, std::int64_t, const std::vector<void*>& out) {
          gpu_backend().rms_norm({x.data() + begin * kC, kC, weight.data(), row<T>(out[0], begin, kC),
                                  kDTypeOf<T>, rows, kC, modulate, mod.from(begin), 0, kC});
        });
}

TYPED_TEST(RowChunks, GatedResidual) {
  using T = TypeParam;
  const OnDevice<T> x(random_values<T>(kRows * kC, 3)), o(random_values<T>(kRows * kC, 4));
  const Modulated<T> mod;
  expect_chunks_equal_whole(
      named<T>("gated_residual"), {kC * std::int64_t{sizeof(T)}},
      [&](std::int64_t begin, std::int64_t rows, std::int64_t, const std::vector<void*>& out) {
        gpu_backend().gated_residual({row<T>(out[0], begin, kC), o.data() + begin * kC, kDTypeOf<T>, rows, kC,
                                      true, mod.from(begin), kC});
      },
      [&](std::int64_t total, const std::vector<void*>& out) {
        H3S_CUDA_CHECK(cudaMemcpy(out[0], x.data(), static_cast<std::size_t>(total * kC) * sizeof(T),
                                  cudaMemcpyDeviceToDevice));
        H3S_CUDA_CHECK(cudaDeviceSynchronize());
      });
}

TYPED_TEST(RowChunks, SwigluAndSilu) {
  using T = TypeParam;
  const OnDevice<T> x(random_values<T>(kRows * 2 * kC, 5, 4.0f));
  expect_chunks_equal_whole(
      named<T>("swiglu and silu"), {kC * std::int64_t{sizeof(T)}, 2 * kC * std::int64_t{sizeof(T)}},
      [&](std::int64_t begin, std::int64_t rows, std::int64_t, const std::vector<void*>& out) {
        const T* src = x.data() + begin * 2 * kC;
        gpu_backend().swiglu({src, row<T>(out[0], begin, kC), kDTypeOf<T>, rows, kC});
        gpu_backend().silu({src, row<T>(out[1], begin, 2 * kC), kDTypeOf<T>, rows * 2 * kC});
      });
}

TYPED_TEST(RowChunks, FinalModulateAndModulationTable) {
  using T = TypeParam;
  const OnDevice<T> x(random_values<T>(kRows * kC, 6));
  const OnDevice<float> adaln(random_values<float>(kRows * 6 * 16, 7)), c(random_values<float>(kC, 8));
  for (const bool round_each : {false, true})
    expect_chunks_equal_whole(
        named<T>("final_modulate and modulation_table"), {kC * 4, 6 * 16 * std::int64_t{sizeof(T)}},
        [&](std::int64_t begin, std::int64_t rows, std::int64_t, const std::vector<void*>& out) {
          gpu_backend().final_modulate({x.data() + begin * kC, c.data(), c.data(), c.data(), round_each,
                                        row<float>(out[0], begin, kC), kDTypeOf<T>, rows, kC});
          gpu_backend().modulation_table({adaln.data() + begin * 6 * 16, DType::kF32,
                                          row<T>(out[1], begin, 6 * 16), kDTypeOf<T>, rows, 16});
        });
}

TYPED_TEST(RowChunks, RopeTableAndQkvNormRope) {
  using T = TypeParam;
  constexpr std::int64_t kHeads = 2, kD = kernels::kHeadDim, kStride = 3 * kHeads * kD + 8,
                         kTable = 2 * kernels::kRopePairs;
  std::vector<double> positions(kRows * 3);
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<double>(i * 7 % 1013) * 0.25;
  const OnDevice<double> where(positions);
  const OnDevice<float> inv_freq(random_values<float>(16, 10)), weight(random_values<float>(kD, 11));
  const OnDevice<T> qkv(random_values<T>(kRows * kStride, 12));
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  expect_chunks_equal_whole(
      named<T>("rope_table and qkv_norm_rope"),
      {kTable * kSize, kHeads * kD * kSize, kHeads * kD * kSize, kHeads * kD * kSize},
      [&](std::int64_t begin, std::int64_t rows, std::int64_t total, const std::vector<void*>& out) {
        gpu_backend().rope_table(
            {where.data() + begin * 3, inv_freq.data(), row<T>(out[0], begin, kTable), kDTypeOf<T>, rows});
        kernels::QkvArgs args;
        const auto part = [&](std::int64_t i) {
          return kernels::QkvArgs::Part{qkv.data() + begin * kStride + i * kHeads * kD,
                                        row<T>(out[static_cast<std::size_t>(i + 1)], begin, kD), total * kD};
        };
        args.q = part(0), args.k = part(1), args.v = part(2);
        args.src_stride = kStride, args.q_weight = args.k_weight = weight.data();
        args.rope = row<T>(out[0], begin, kTable);
        args.dtype = kDTypeOf<T>, args.m = rows, args.heads = kHeads;
        gpu_backend().qkv_norm_rope(args);
      });
}

TYPED_TEST(RowChunks, Quantizers) {
  using T = TypeParam;
  constexpr std::int64_t kK = 512;
  const OnDevice<T> x(random_values<T>(kRows * 2 * kK, 13, 3.0f));
  for (const std::int64_t group : {0, 256})
    expect_chunks_equal_whole(
        named<T>(fmt::format("quantize_rows and swiglu_quantize_rows, group {}", group)), {kK, 4, kK, 4},
        [&](std::int64_t begin, std::int64_t rows, std::int64_t, const std::vector<void*>& out) {
          gpu_backend().quantize_rows({x.data() + begin * 2 * kK, kDTypeOf<T>, 2 * kK, group,
                                       row<std::int8_t>(out[0], begin, kK), row<float>(out[1], begin, 1),
                                       rows, kK});
          gpu_backend().swiglu_quantize_rows({x.data() + begin * 2 * kK, kDTypeOf<T>, group,
                                              row<std::int8_t>(out[2], begin, kK),
                                              row<float>(out[3], begin, 1), rows, kK});
        });
}

}  // namespace
}  // namespace h3s::test
