// Tensors past 2^31 elements and 2^32 bytes: the last rows of every op are read and written where they are.
//
// Rows x 21,504 (fused q, k, v), 10,752 and 7,168 (56 heads) pass 2^31 at 99,866, 199,729 and 299,594 rows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backend/cuda/attention.h"
#include "backend/cuda/check.h"
#include "backend/cuda/linear.h"
#include "backend_cuda/chunks.h"
#include "kernels/row_ops.h"

namespace h3s::test {
namespace {

constexpr std::int64_t kD = kernels::kHeadDim, kHeads = 56, kHidden = kHeads * kD;
constexpr std::int64_t kTail = 130;  // rows compared: more than a tile
constexpr std::int64_t kPast = std::int64_t{1} << 31;

std::int64_t free_bytes() {
  std::size_t available = 0, total = 0;
  H3S_CUDA_CHECK(cudaMemGetInfo(&available, &total));
  return static_cast<std::int64_t>(available);
}

#define SKIP_WITHOUT(bytes)                                                               \
  if (free_bytes() < (bytes) + (std::int64_t{1} << 30))                                   \
  GTEST_SKIP() << "needs " << ((bytes) >> 30) << " GiB of free device memory, there are " \
               << (free_bytes() >> 30)

// `count` random elements of T, the same block over and over. Its length is odd: an offset that has lost its
// upper bits meets other values.
template <typename T>
OnDevice<T> scattered(std::int64_t count, std::uint64_t seed) {
  OnDevice<T> all(count);
  const std::vector<T> block = random_values<T>(std::min<std::int64_t>(count, 4'194'301), seed);
  const auto size = static_cast<std::int64_t>(block.size());
  for (std::int64_t begin = 0; begin < count; begin += size)
    H3S_CUDA_CHECK(cudaMemcpy(all.data() + begin, begin == 0 ? block.data() : all.data(),
                              static_cast<std::size_t>(std::min(size, count - begin)) * sizeof(T),
                              cudaMemcpyDefault));
  return all;
}

// The last `bytes` of two device tensors agree, and are not what they were filled with.
void expect_same_tail(const std::string& what, const void* whole_end, const void* part_end,
                      std::int64_t bytes) {
  std::vector<std::uint8_t> a(static_cast<std::size_t>(bytes)), b(a.size());
  H3S_CUDA_CHECK(cudaDeviceSynchronize());
  H3S_CUDA_CHECK(
      cudaMemcpy(a.data(), static_cast<const std::byte*>(whole_end) - bytes, a.size(), cudaMemcpyDefault));
  H3S_CUDA_CHECK(
      cudaMemcpy(b.data(), static_cast<const std::byte*>(part_end) - bytes, b.size(), cudaMemcpyDefault));
  EXPECT_TRUE(a == b) << what;
  EXPECT_LT(std::count(a.begin(), a.end(), 0xFF), bytes / 8) << what << ": not written";
}

template <typename T>
OnDevice<T> poisoned(std::int64_t count) {
  OnDevice<T> memory(count);
  H3S_CUDA_CHECK(cudaMemset(memory.data(), 0xFF, static_cast<std::size_t>(count) * sizeof(T)));
  H3S_CUDA_CHECK(cudaDeviceSynchronize());
  return memory;
}

// ---- attention ----

struct Kernel {
  const char* name;
  void (*run)(const kernels::AttentionArgs&, cudaStream_t);
};

std::vector<Kernel> attention_kernels() {
  int major = 0;
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  std::vector<Kernel> all{
      {"attention_mma", [](const kernels::AttentionArgs& a, cudaStream_t s) { cuda::attention_mma(a, s); }}};
  if (major == 9) all.push_back({"attention_sm90", cuda::attention_sm90});
  return all;
}

struct Far {
  std::int64_t tokens, token_stride;
};

// K is zero but for the last key, which outweighs all others; V's last row has a one in dimension h of head h
// and the other rows hold what would show. So O is exactly the last row of V, if that is what was read.
void expect_last_value_found(const Far& far) {
  const std::int64_t count = (far.tokens - 1) * far.token_stride + kHidden,
                     last = (far.tokens - 1) * far.token_stride;
  SKIP_WITHOUT(2 * 2 * count);
  const OnDevice<F16> k(count), v(count);
  H3S_CUDA_CHECK(cudaMemset(k.data(), 0, static_cast<std::size_t>(count) * 2));
  H3S_CUDA_CHECK(cudaMemset(v.data(), 0xC2, static_cast<std::size_t>(count) * 2));  // -3.2 in fp16
  const std::vector<F16> key(kHidden, to_f16(8.0f));
  std::vector<F16> value(kHidden, to_f16(0.0f));
  for (std::int64_t h = 0; h < kHeads; ++h) value[static_cast<std::size_t>(h * kD + h)] = to_f16(1.0f);
  H3S_CUDA_CHECK(cudaMemcpy(k.data() + last, key.data(), key.size() * 2, cudaMemcpyHostToDevice));
  H3S_CUDA_CHECK(cudaMemcpy(v.data() + last, value.data(), value.size() * 2, cudaMemcpyHostToDevice));
  const OnDevice<F16> q(std::vector<F16>(static_cast<std::size_t>(3 * kHidden), to_f16(8.0f)));
  for (const Kernel& kernel : attention_kernels()) {
    const OnDevice<F16> o = poisoned<F16>(3 * kHidden);
    kernels::AttentionArgs a;
    a.q = q.data(), a.k = k.data(), a.v = v.data(), a.o = o.data(), a.dtype = DType::kF16;
    a.heads = kHeads, a.q_tokens = 3, a.kv_tokens = far.tokens;
    a.q_head_stride = a.k_head_stride = a.v_head_stride = a.o_head_stride = kD;
    a.q_token_stride = a.o_token_stride = kHidden;
    a.k_token_stride = a.v_token_stride = far.token_stride;
    a.scale = 1.0f / std::sqrt(128.0f);
    kernel.run(a, nullptr);
    std::vector<F16> got(static_cast<std::size_t>(3 * kHidden));
    H3S_CUDA_CHECK(cudaMemcpy(got.data(), o.data(), got.size() * 2, cudaMemcpyDeviceToHost));
    for (std::int64_t i = 0; i < 3; ++i)
      expect_same_bits({kernel.name, fmt::format("{} keys, stride {}", far.tokens, far.token_stride)},
                       value.data(), got.data() + i * kHidden, kHidden, kD);
  }
}

TEST(FarOffsets, LastKeyAndValue99866) {
  expect_last_value_found({99'866, kHidden});
}
TEST(FarOffsets, LastKeyAndValue199729) {
  expect_last_value_found({199'729, kHidden});
}
TEST(FarOffsets, LastKeyAndValue299594) {
  expect_last_value_found({299'594, kHidden});
}
// Where the row of a fused projection makes the offset.
TEST(FarOffsets, LastKeyAndValueOfFusedRows) {
  expect_last_value_found({99'866, 3 * kHidden});
}

// [head][token][128], as the engine keeps them: the last head lies past 2^31.
TEST(FarOffsets, LastHeadAndLastQuery) {
  constexpr std::int64_t kTokens = 299'594, kKeys = 65, kCount = kTokens * kHidden;
  SKIP_WITHOUT(2 * 2 * kCount + kTokens * kHeads * 4);
  const OnDevice<BF16> q = scattered<BF16>(kCount, 1), k = scattered<BF16>(kHeads * kKeys * kD, 2),
                       v = scattered<BF16>(kHeads * kKeys * kD, 3);
  for (const Kernel& kernel : attention_kernels()) {
    const OnDevice<BF16> o = poisoned<BF16>(kCount), tail = poisoned<BF16>(kTail * kHidden);
    const OnDevice<float> lse = poisoned<float>(kTokens * kHeads), tail_lse = poisoned<float>(kTail * kHeads);
    kernels::AttentionArgs a;
    a.q = q.data(), a.k = k.data(), a.v = v.data(), a.o = o.data(), a.lse = lse.data(),
    a.dtype = DType::kBF16;
    a.heads = kHeads, a.q_tokens = kTokens, a.kv_tokens = kKeys;
    a.q_head_stride = kTokens * kD, a.k_head_stride = a.v_head_stride = kKeys * kD;
    a.q_token_stride = a.k_token_stride = a.v_token_stride = a.o_head_stride = kD, a.o_token_stride = kHidden;
    a.scale = 1.0f / std::sqrt(128.0f);
    kernel.run(a, nullptr);
    a.q = q.data() + (kTokens - kTail) * kD, a.o = tail.data(), a.lse = tail_lse.data(), a.q_tokens = kTail;
    kernel.run(a, nullptr);
    expect_same_tail(kernel.name, o.data() + kCount, tail.data() + kTail * kHidden, 2 * kTail * kHidden);
    expect_same_tail(std::string(kernel.name) + " lse", lse.data() + kTokens * kHeads,
                     tail_lse.data() + kTail * kHeads, 4 * kTail);
  }
}

// ---- linears: y past 2^31 elements at the widths of qkv_proj and fc1, then x ----

struct Wide {
  std::int64_t rows, n, k, x_stride;
};

const std::vector<Wide> kWide{{kPast / 21'504 + kTail, 21'504, 16, 16},
                              {kPast / 28'672 + kTail, 28'672, 16, 16},
                              {kPast / 28'672 + kTail, 16, 64, 28'672}};

template <typename T>
void expect_far_linear(const char* name, void (*kernel)(const kernels::LinearArgs&, cudaStream_t)) {
  for (const Wide& s : kWide) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    SKIP_WITHOUT((s.rows * s.x_stride + s.rows * s.n) * kSize);
    const OnDevice<T> x = scattered<T>(s.rows * s.x_stride, 1), w = scattered<T>(s.n * s.k, 2),
                      y = poisoned<T>(s.rows * s.n), tail = poisoned<T>(kTail * s.n);
    constexpr DType kType = kDTypeOf<T>;
    kernel({x.data(), kType, s.x_stride, w.data(), kType, nullptr, y.data(), kType, s.n, s.rows, s.n, s.k},
           nullptr);
    kernel({x.data() + (s.rows - kTail) * s.x_stride, kType, s.x_stride, w.data(), kType, nullptr,
            tail.data(), kType, s.n, kTail, s.n, s.k},
           nullptr);
    expect_same_tail(fmt::format("{} {} n {} k {}", name, dtype_name(kType), s.n, s.k),
                     y.data() + s.rows * s.n, tail.data() + kTail * s.n, kTail * s.n * kSize);
  }
}

TEST(FarOffsets, Linears) {
  int major = 0;
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major >= 8) expect_far_linear<BF16>("linear_mma", cuda::linear_mma);
  if (major == 9) expect_far_linear<BF16>("linear_sm90", cuda::linear_sm90);
  expect_far_linear<F16>("linear", cuda::linear);
  expect_far_linear<float>("linear_fma", cuda::linear_fma);
}

TEST(FarOffsets, LinearsInt8) {
  int major = 0;
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  // x is dense: 149,797 rows of 14,336 codes, as fc2 reads them, are past 2^31 bytes.
  for (const Wide& s :
       {Wide{kPast / 21'504 + kTail, 21'504, 16, 16}, Wide{kPast / 14'336 + kTail, 16, 14'336, 14'336}}) {
    SKIP_WITHOUT(s.rows * s.k + 2 * s.rows * s.n);
    const OnDevice<BF16> codes = scattered<BF16>((s.rows * s.k + 1) / 2, 1),
                         w_codes = scattered<BF16>(s.n * s.k / 2, 2);
    const OnDevice<float> x_scale = scattered<float>(s.rows, 3), w_scale = scattered<float>(s.n, 4);
    const auto* x = reinterpret_cast<const std::int8_t*>(codes.data());
    const auto* w = reinterpret_cast<const std::int8_t*>(w_codes.data());
    for (const auto kernel : {cuda::linear_int8_mma, cuda::linear_int8_sm90}) {
      if (kernel == cuda::linear_int8_sm90 && major != 9) continue;
      const OnDevice<BF16> y = poisoned<BF16>(s.rows * s.n), tail = poisoned<BF16>(kTail * s.n);
      kernel({x, x_scale.data(), w, w_scale.data(), nullptr, y.data(), DType::kBF16, s.n, s.rows, s.n, s.k},
             nullptr);
      kernel({x + (s.rows - kTail) * s.k, x_scale.data() + s.rows - kTail, w, w_scale.data(), nullptr,
              tail.data(), DType::kBF16, s.n, kTail, s.n, s.k},
             nullptr);
      expect_same_tail(fmt::format("linear_int8 n {} k {}", s.n, s.k), y.data() + s.rows * s.n,
                       tail.data() + kTail * s.n, 2 * kTail * s.n);
    }
  }
}

// ---- row ops ----

TEST(FarOffsets, QkvNormRope) {
  constexpr std::int64_t kRows = kPast / 21'504 + kTail, kStride = 21'504;
  SKIP_WITHOUT(4 * kRows * kStride);
  const OnDevice<BF16> qkv = scattered<BF16>(kRows * kStride, 1), rope = scattered<BF16>(kRows * 96, 2);
  const OnDevice<float> weight(random_values<float>(kD, 3));
  const OnDevice<BF16> whole = poisoned<BF16>(kRows * kStride), tail = poisoned<BF16>(kTail * kStride);
  const auto run = [&](std::int64_t begin, std::int64_t rows, BF16* out) {
    kernels::QkvArgs a;
    const BF16* src = qkv.data() + begin * kStride;
    a.q = {src, out, rows * kD};
    a.k = {src + kHidden, out + rows * kHidden, rows * kD};
    a.v = {src + 2 * kHidden, out + 2 * rows * kHidden, rows * kD};
    a.src_stride = kStride, a.q_weight = a.k_weight = weight.data(), a.rope = rope.data() + begin * 96;
    a.m = rows, a.heads = kHeads;
    gpu_backend().qkv_norm_rope(a);
  };
  run(0, kRows, whole.data());
  run(kRows - kTail, kTail, tail.data());
  for (std::int64_t h = 1; h <= 3 * kHeads; ++h)  // the last rows of every head of q, k and v
    expect_same_tail(fmt::format("qkv_norm_rope, head {} of 168", h), whole.data() + h * kRows * kD,
                     tail.data() + h * kTail * kD, 2 * kTail * kD);
}

TEST(FarOffsets, SwigluAndItsQuantizer) {
  constexpr std::int64_t kF = 14'336, kRows = kPast / (2 * kF) + kTail;
  SKIP_WITHOUT(2 * kRows * 2 * kF + 3 * kRows * kF);
  const OnDevice<BF16> x = scattered<BF16>(kRows * 2 * kF, 1);
  const OnDevice<BF16> y = poisoned<BF16>(kRows * kF), y_tail = poisoned<BF16>(kTail * kF);
  const OnDevice<std::int8_t> codes = poisoned<std::int8_t>(kRows * kF),
                              codes_tail = poisoned<std::int8_t>(kTail * kF);
  const OnDevice<float> scale = poisoned<float>(kRows), scale_tail = poisoned<float>(kTail);
  const BF16* last = x.data() + (kRows - kTail) * 2 * kF;
  gpu_backend().swiglu({x.data(), y.data(), DType::kBF16, kRows, kF});
  gpu_backend().swiglu({last, y_tail.data(), DType::kBF16, kTail, kF});
  gpu_backend().swiglu_quantize_rows({x.data(), DType::kBF16, 256, codes.data(), scale.data(), kRows, kF});
  gpu_backend().swiglu_quantize_rows(
      {last, DType::kBF16, 256, codes_tail.data(), scale_tail.data(), kTail, kF});
  expect_same_tail("swiglu", y.data() + kRows * kF, y_tail.data() + kTail * kF, 2 * kTail * kF);
  expect_same_tail("swiglu_quantize_rows", codes.data() + kRows * kF, codes_tail.data() + kTail * kF,
                   kTail * kF);
  expect_same_tail("scales", scale.data() + kRows, scale_tail.data() + kTail, 4 * kTail);
}

TEST(FarOffsets, NormResidualAndQuantizer) {
  constexpr std::int64_t kC = 5'376, kRows = kPast / kC + kTail;
  SKIP_WITHOUT(2 * 2 * kRows * kC + kRows * kC);
  const OnDevice<BF16> x = scattered<BF16>(kRows * kC, 1), y = poisoned<BF16>(kRows * kC),
                       tail = poisoned<BF16>(kTail * kC);
  const OnDevice<float> weight(random_values<float>(kC, 2));
  const BF16* last = x.data() + (kRows - kTail) * kC;
  gpu_backend().rms_norm({x.data(), kC, weight.data(), y.data(), DType::kBF16, kRows, kC, false, {}, 0, 0});
  gpu_backend().rms_norm({last, kC, weight.data(), tail.data(), DType::kBF16, kTail, kC, false, {}, 0, 0});
  expect_same_tail("rms_norm", y.data() + kRows * kC, tail.data() + kTail * kC, 2 * kTail * kC);
  gpu_backend().gated_residual({y.data(), x.data(), DType::kBF16, kRows, kC, false, {}, 0});
  gpu_backend().gated_residual({tail.data(), last, DType::kBF16, kTail, kC, false, {}, 0});
  expect_same_tail("gated_residual", y.data() + kRows * kC, tail.data() + kTail * kC, 2 * kTail * kC);
  const OnDevice<std::int8_t> codes = poisoned<std::int8_t>(kRows * kC),
                              codes_tail = poisoned<std::int8_t>(kTail * kC);
  const OnDevice<float> scale = poisoned<float>(kRows), scale_tail = poisoned<float>(kTail);
  gpu_backend().quantize_rows({x.data(), DType::kBF16, kC, 256, codes.data(), scale.data(), kRows, kC});
  gpu_backend().quantize_rows({last, DType::kBF16, kC, 256, codes_tail.data(), scale_tail.data(), kTail, kC});
  expect_same_tail("quantize_rows", codes.data() + kRows * kC, codes_tail.data() + kTail * kC, kTail * kC);
  expect_same_tail("scales", scale.data() + kRows, scale_tail.data() + kTail, 4 * kTail);
}

}  // namespace
}  // namespace h3s::test
