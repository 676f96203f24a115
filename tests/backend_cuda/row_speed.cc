// Bandwidth of the row ops on the first GPU beside a copy of as many bytes, at the rows and columns of the
// real network.
//
//   cuda_row_speed [rounds]
//
// Each op cycles over operands larger together than L2; CUDA events around each call; median of the rounds.
// Bytes: what the op's header says moves, each operand once.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <vector>

#include "backend/cuda/check.h"
#include "backend/cuda/row_ops.h"

namespace {

using namespace h3s;

constexpr std::int64_t kM = 16384, kC = 5376, kF = 14336, kHeads = 56, kD = 128;

class Buffer {
 public:
  // Small random bf16 values, so that nothing overflows.
  explicit Buffer(std::int64_t bytes) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(bytes / 4));
    std::uint32_t seed = 12345;
    for (std::uint32_t& w : words) {
      seed = seed * 1664525u + 1013904223u;
      w = (seed & 0x807F807Fu) | 0x3F003F00u;
    }
    H3S_CUDA_CHECK(cudaMalloc(&data_, static_cast<std::size_t>(bytes)));
    H3S_CUDA_CHECK(cudaMemcpy(data_, words.data(), words.size() * 4, cudaMemcpyHostToDevice));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

double median_ms(int rounds, const std::function<void()>& fn) {
  cudaEvent_t begin, end;
  H3S_CUDA_CHECK(cudaEventCreate(&begin));
  H3S_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < rounds + 3; ++i) {
    H3S_CUDA_CHECK(cudaEventRecord(begin));
    fn();
    H3S_CUDA_CHECK(cudaEventRecord(end));
    H3S_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    H3S_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds / 2)];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  const Buffer wide(kM * 2 * kF * 2), a(kM * 3 * kHeads * kD * 2), b(kM * 3 * kHeads * kD * 2),
      y(kM * kC * 4), small(64 << 20);
  const kernels::ModSegment segments[3] = {{0, 100, 0}, {100, 700, 1}, {700, kM, 2}};
  const kernels::Modulation modulation{segments, 3, 0, small.as<void>(), 6 * kC};
  const float* floats = small.as<float>() + (4 << 20);

  double copy_rate = 0;
  const auto report = [&](const char* name, double bytes, const std::function<void()>& fn) {
    const double ms = median_ms(rounds, fn), rate = bytes / ms / 1e6;
    if (copy_rate == 0) copy_rate = rate;
    fmt::print("{:<28}{:>9.3f} ms{:>9.0f} MB{:>8.0f} GB/s{:>7.1f} % of copy\n", name, ms, bytes / 1e6, rate,
               100 * rate / copy_rate);
  };
  const double row = 2.0 * kC;
  report("copy", 2 * kM * 3.0 * kHeads * kD * 2, [&] {
    H3S_CUDA_CHECK(
        cudaMemcpyAsync(b.as<void>(), a.as<void>(), kM * 3 * kHeads * kD * 2, cudaMemcpyDeviceToDevice));
  });
  kernels::RmsNormArgs norm{a.as<void>(), kC, floats, y.as<void>(), DType::kBF16, kM, kC, true,
                            modulation,   kC, 0};
  report("rms_norm modulated", kM * 2 * row, [&] { cuda::rms_norm(norm, nullptr); });
  norm.modulate = false;
  report("rms_norm", kM * 2 * row, [&] { cuda::rms_norm(norm, nullptr); });
  kernels::GatedResidualArgs gated{y.as<void>(), a.as<void>(), DType::kBF16, kM,
                                   kC,           true,         modulation,   2 * kC};
  report("gated_residual", kM * 3 * row, [&] { cuda::gated_residual(gated, nullptr); });
  gated.modulate = false;
  report("residual", kM * 3 * row, [&] { cuda::gated_residual(gated, nullptr); });
  report("swiglu", kM * 6.0 * kF, [&] {
    cuda::swiglu({wide.as<void>(), a.as<void>(), DType::kBF16, kM, kF}, nullptr);
  });
  report("silu", kM * 8.0 * kF, [&] {
    cuda::silu({wide.as<void>(), wide.as<void>(), DType::kBF16, kM * 2 * kF}, nullptr);
  });
  kernels::FinalModulateArgs final_args{
      a.as<void>(), floats, floats + kC, floats + 2 * kC, false, y.as<float>(), DType::kBF16, kM, kC};
  report("final_modulate", kM * 3 * row, [&] { cuda::final_modulate(final_args, nullptr); });
  kernels::QkvArgs qkv;
  qkv.src_stride = 3 * kHeads * kD;
  qkv.q_weight = floats, qkv.k_weight = floats + kD, qkv.rope = small.as<void>();
  qkv.m = kM, qkv.heads = kHeads;
  kernels::QkvArgs::Part* parts[3] = {&qkv.q, &qkv.k, &qkv.v};
  for (std::int64_t i = 0; i < 3; ++i)
    *parts[i] = {a.as<std::uint16_t>() + i * kHeads * kD, b.as<std::uint16_t>() + i * kM * kHeads * kD,
                 kM * kD};
  report("qkv_norm_rope", kM * 12.0 * kHeads * kD, [&] { cuda::qkv_norm_rope(qkv, nullptr); });
  qkv.rope = nullptr;
  report("qkv_norm_rope, no rotation", kM * 12.0 * kHeads * kD, [&] { cuda::qkv_norm_rope(qkv, nullptr); });
  report("rope_table", kM * (24 + 192.0), [&] {
    cuda::rope_table({small.as<double>(), floats, b.as<void>(), DType::kBF16, kM}, nullptr);
  });
  return 0;
}
