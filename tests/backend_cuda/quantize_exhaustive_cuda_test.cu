// Every input of the shortcuts of the quantisers: silu_fast against silu for all floats, the table of silu
// against silu for all bf16, the quotients without a division against IEEE division for all pairs of bf16.
// Exits with 1 on a mismatch.
#include <cstdint>
#include <cstdio>

#include "backend/cuda/device/rotated_int8.cuh"
#include "backend/cuda/device/silu.cuh"
#include "backend/cuda/device/silu_table.cuh"

namespace {

using namespace h3s::cuda::device;

struct Found {
  unsigned long long tried, wrong;
  uint32_t first[2];
};

__device__ void report(Found* found, bool wrong, uint32_t a, uint32_t b) {
  atomicAdd(&found->tried, 1ull);
  if (wrong && atomicAdd(&found->wrong, 1ull) == 0) found->first[0] = a, found->first[1] = b;
}

// Equal but for the sign of zero, which no code and no maximum sees.
__device__ bool differ(float a, float b) {
  return __float_as_uint(a) != __float_as_uint(b) && !(a == 0.0f && b == 0.0f);
}

__global__ void silu_kernel(Found* found) {
  unsigned long long tried = 0;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < uint64_t{1} << 32;
       i += uint64_t{gridDim.x} * blockDim.x) {
    const float z = __uint_as_float(static_cast<uint32_t>(i));
    if (!(z >= kSiluFastMin) || z > 3.4028235e38f) continue;
    ++tried;
    if (differ(silu_fast(z), silu(z)))
      report(found, true, static_cast<uint32_t>(i), __float_as_uint(silu_fast(z)));
  }
  atomicAdd(&found->tried, tried);
}

// All divisors from the smallest to `most`, quotients up to 128. got(v, d) for each.
template <typename Got>
__device__ void try_quotients(Found* found, float most, Got got) {
  unsigned long long tried = 0;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < uint64_t{1} << 32;
       i += uint64_t{gridDim.x} * blockDim.x) {
    const float v = __uint_as_float(static_cast<uint32_t>(i) << 16),
                d = __uint_as_float(static_cast<uint32_t>(i >> 16) << 16);
    if (!(d >= 0.99e-30f) || d > most || !(fabsf(v) <= 128.0f * d)) continue;
    ++tried;
    const float expected = round_to<__nv_bfloat16>(__fdiv_rn(v, d)), quotient = got(v, d);
    // A quotient that rounds to no code may lose its last bits: 2^-100 and 0 are the same code.
    if (differ(quotient, expected) && fabsf(expected) > 1e-6f)
      report(found, true, __float_as_uint(v), __float_as_uint(d));
  }
  atomicAdd(&found->tried, tried);
}

// Far past what 2^120 / 127 allows.
__global__ void quotient_kernel(Found* found) {
  try_quotients(found, 1e36f,
                [](float v, float d) { return low_bf16(quotient_pair(v, 0.0f, d, __frcp_rn(d))); });
}

// All that a row on the fast route can have, with the approximate inverse kUlps off.
template <int kUlps>
__global__ void rotated_quotient_kernel(Found* found) {
  try_quotients(found, kRotatedLimit / 126, [](float v, float d) {
    const float inverse = __int_as_float(__float_as_int(__frcp_rn(d)) + kUlps);
    return low_bf16(quotient_pair(pack_bf16(v, 0.0f), Divisor(d, inverse)));
  });
}

// By one block, in either half of a word.
__global__ void silu_table_kernel(Found* found) {
  fill_silu_table();
  if (blockIdx.x > 0) return;
  for (uint32_t i = threadIdx.x; i < 0x10000; i += blockDim.x) {
    const float z = __uint_as_float(i << 16);
    const uint32_t magnitude = i & 0x7fff;
    if (magnitude != 0 && (magnitude <= kSiluFirst || magnitude >= kSiluFirst + kSiluMagnitudes)) continue;
    const float low = silu_pair(i, magnitudes(i)).x, high = silu_pair(i << 16, magnitudes(i << 16)).y;
    report(found, differ(low, silu(z)) || differ(high, silu(z)), i, __float_as_uint(low));
  }
}

int run(const char* name, void (*kernel)(Found*)) {
  Found* found = nullptr;
  Found host = {};
  cudaMalloc(&found, sizeof(Found));
  cudaMemset(found, 0, sizeof(Found));
  kernel<<<1056, 256>>>(found);
  cudaMemcpy(&host, found, sizeof(Found), cudaMemcpyDeviceToHost);
  cudaFree(found);
  const cudaError_t status = cudaGetLastError();
  const bool ok = status == cudaSuccess && host.wrong == 0 && host.tried > 0;
  std::printf("%s %s: %llu tried, %llu wrong, first 0x%08x 0x%08x, %s\n", ok ? "ok  " : "FAIL", name,
              host.tried, host.wrong, host.first[0], host.first[1], cudaGetErrorString(status));
  return ok ? 0 : 1;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no GPU");
    return 77;
  }
  const int failed = run("silu_fast", silu_kernel) + run("silu table", silu_table_kernel) +
                     run("quotient", quotient_kernel) +
                     run("rotated quotient, -2 ulps", rotated_quotient_kernel<-2>) +
                     run("rotated quotient", rotated_quotient_kernel<0>) +
                     run("rotated quotient, +2 ulps", rotated_quotient_kernel<2>);
  return failed == 0 ? 0 : 1;
}
