// The CUDA attention kernels against the plain formula, on buffers without a byte to spare, so that
// compute-sanitizer sees every access outside. Exits with 1 on a mismatch, 77 when there is no GPU.
//
//   attention_cuda_test [small] [text]   small: one size, for racecheck; text: only kernels with it in their
//   name
//
// NOTE: racecheck does not follow bar.arrive. It reports hazards for "attention_mma 8x2", whose halves pass
// turns by bar.arrive and bar.sync, and equally for the producer and consumer example of the PTX manual
// (bar_arrive_racecheck.cu). attention_racecheck is this program with bar.sync in its place.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/check.h"
#include "base/float16.h"

namespace {

using h3s::DType;
using h3s::kernels::AttentionArgs;
using Launch = std::function<void(const AttentionArgs&, cudaStream_t)>;

constexpr int kHeadDim = 128;

// A device copy of host data, exactly as large.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes) : bytes_(bytes) { H3S_CUDA_CHECK(cudaMalloc(&data_, bytes)); }
  DeviceBuffer(const void* host, std::size_t bytes) : DeviceBuffer(bytes) {
    H3S_CUDA_CHECK(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice));
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }
  void* data() const { return data_; }
  void read(void* host) const { H3S_CUDA_CHECK(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost)); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

std::uint16_t encode(float x, DType dtype) {
  return dtype == DType::kBF16 ? h3s::to_bf16(x).bits : h3s::to_f16(x).bits;
}
float decode(std::uint16_t bits, DType dtype) {
  return dtype == DType::kBF16 ? h3s::to_float(h3s::BF16{bits}) : h3s::to_float(h3s::F16{bits});
}

// Values in (-2, 2) from a fixed generator.
std::vector<std::uint16_t> random_values(std::size_t count, std::uint32_t seed, DType dtype) {
  std::vector<std::uint16_t> values(count);
  for (auto& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = encode(static_cast<float>(static_cast<std::int32_t>(seed) / 1073741824.0), dtype);
  }
  return values;
}

struct Case {
  std::int64_t heads, q_tokens, kv_tokens;
  DType dtype;
};

bool run_case(const std::string& name, const Launch& launch, const Case& c) {
  const std::size_t q_count = c.heads * c.q_tokens * kHeadDim, kv_count = c.heads * c.kv_tokens * kHeadDim;
  const auto q = random_values(q_count, 1, c.dtype), k = random_values(kv_count, 2, c.dtype),
             v = random_values(kv_count, 3, c.dtype);
  const DeviceBuffer q_dev(q.data(), 2 * q_count), k_dev(k.data(), 2 * kv_count),
      v_dev(v.data(), 2 * kv_count);
  const DeviceBuffer o_dev(2 * q_count), lse_dev(4 * c.heads * c.q_tokens);
  H3S_CUDA_CHECK(cudaMemset(o_dev.data(), 0xFF, 2 * q_count));  // NaN
  AttentionArgs args;
  args.q = q_dev.data();
  args.k = k_dev.data();
  args.v = v_dev.data();
  args.o = o_dev.data();
  args.lse = static_cast<float*>(lse_dev.data());
  args.dtype = c.dtype;
  args.heads = c.heads;
  args.q_tokens = c.q_tokens;
  args.kv_tokens = c.kv_tokens;
  args.q_head_stride = c.q_tokens * kHeadDim;
  args.k_head_stride = args.v_head_stride = c.kv_tokens * kHeadDim;
  args.q_token_stride = args.k_token_stride = args.v_token_stride = kHeadDim;
  args.o_head_stride = kHeadDim;
  args.o_token_stride = c.heads * kHeadDim;
  args.scale = static_cast<float>(1.0 / std::sqrt(128.0));
  launch(args, nullptr);
  H3S_CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<std::uint16_t> o(q_count);
  std::vector<float> lse(c.heads * c.q_tokens);
  o_dev.read(o.data());
  lse_dev.read(lse.data());

  // |v| < 2: rounding p moves an output by at most 2 x 2^-9 (bf16), rounding the output by 2 x 2^-9 more;
  // fp16 is 8 times finer.
  const double bound = c.dtype == DType::kBF16 ? 4 * 0x1p-9 : 4 * 0x1p-12;
  std::vector<double> p(c.kv_tokens);
  for (std::int64_t h = 0; h < c.heads; ++h) {
    for (std::int64_t i = 0; i < c.q_tokens; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < c.kv_tokens; ++j) {
        double dot = 0;
        for (int d = 0; d < kHeadDim; ++d) {
          dot += double{decode(q[(h * c.q_tokens + i) * kHeadDim + d], c.dtype)} *
                 decode(k[(h * c.kv_tokens + j) * kHeadDim + d], c.dtype);
        }
        p[j] = std::exp(dot * args.scale);  // below e^46, no overflow in double
        sum += p[j];
      }
      for (int d = 0; d < kHeadDim; ++d) {
        double expected = 0;
        for (std::int64_t j = 0; j < c.kv_tokens; ++j)
          expected += p[j] / sum * decode(v[(h * c.kv_tokens + j) * kHeadDim + d], c.dtype);
        const double got = decode(o[(i * c.heads + h) * kHeadDim + d], c.dtype);
        if (!(std::abs(got - expected) <= bound)) {
          std::printf("FAIL %s H=%ld Sq=%ld Sk=%ld %s: o[%ld][%ld][%d] = %.9g, expected %.9g\n", name.c_str(),
                      long(c.heads), long(c.q_tokens), long(c.kv_tokens),
                      c.dtype == DType::kBF16 ? "BF16" : "F16", long(i), long(h), d, got, expected);
          return false;
        }
      }
      if (!(std::abs(lse[h * c.q_tokens + i] - std::log(sum)) <= 2e-5)) {  // a few float32 steps at 46
        std::printf("FAIL %s lse[%ld][%ld] = %.9g, expected %.9g\n", name.c_str(), long(h), long(i),
                    double(lse[h * c.q_tokens + i]), std::log(sum));
        return false;
      }
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0, major = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  H3S_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  const bool small = argc > 1 && std::strcmp(argv[1], "small") == 0;
  const std::string wanted = argc > 1 + small ? argv[1 + small] : "";
  struct Kernel {
    std::string name;
    Launch launch;
  };
  std::vector<Kernel> kernels;
  if (major == 9) kernels.push_back({"attention_sm90", h3s::cuda::attention_sm90});
  for (const h3s::cuda::AttentionMmaShape shape : {h3s::cuda::AttentionMmaShape{8, 2}, {8, 1}, {4, 1}}) {
    kernels.push_back(
        {"attention_mma " + std::to_string(shape.warps) + "x" + std::to_string(shape.stages),
         [shape](const AttentionArgs& a, cudaStream_t s) { h3s::cuda::attention_mma(a, shape, s); }});
  }
  std::vector<Case> cases;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    if (dtype == DType::kBF16 && major < 8) continue;
    if (small) {
      cases.push_back({1, 130, 300, dtype});
      continue;
    }
    for (const std::int64_t q : {1, 33, 130, 259}) {
      for (const std::int64_t kv : {1, 64, 65, 127, 128, 129, 300}) cases.push_back({2, q, kv, dtype});
    }
  }
  int failed = 0;
  for (const Kernel& kernel : kernels) {
    if (kernel.name.find(wanted) == std::string::npos) continue;
    int failed_here = 0;
    for (const Case& c : cases) failed_here += !run_case(kernel.name, kernel.launch, c);
    std::printf("%s: %zu cases, %d failed\n", kernel.name.c_str(), cases.size(), failed_here);
    failed += failed_here;
  }
  return failed == 0 ? 0 : 1;
}
