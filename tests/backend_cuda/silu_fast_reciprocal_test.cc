// The arithmetic of device/silu.cuh on the CPU, for every z and for a reciprocal one ulp low, right and one
// ulp high: how far the division of silu_fast depends on the card's reciprocal unit. Prints the exceptions;
// exits with 1 when there are more than the 20 known ones, or when a divisor differs from that of the
// definition.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>

#include "backend/cpu/math.h"

namespace {

float from_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
std::uint32_t bits_of(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

float fast_exponential(float z) {
  using namespace h3s::cpu;
  constexpr float kRoundMagic = 12582912.0f;
  const float x = -std::fmin(z, 80.0f);
  const float sum = x * kLog2e + kRoundMagic;
  const float r = std::fma(x, kLog2eLow, std::fma(x, kLog2e, -(sum - kRoundMagic)));
  float q = kExp2Poly[5];
  for (int i = 4; i >= 0; --i) q = std::fma(q, r, kExp2Poly[i]);
  return from_bits(bits_of(std::fma(q, r, 1.0f)) + (bits_of(sum) << 23));
}

float refined(float z, float divisor, float inverse) {
  float q = z * inverse;
  q = std::fma(std::fma(-divisor, q, z), inverse, q);
  return std::fma(std::fma(-divisor, q, z), inverse, q);
}

// z from `first` away from zero to `last`.
int exceptions(float first, float last) {
  int found = 0;
  for (std::uint32_t bits = bits_of(first); bits <= bits_of(last); ++bits) {
    const float z = from_bits(bits), divisor = 1.0f + fast_exponential(z), expected = z / divisor;
    if (divisor != 1.0f + h3s::cpu::exp(-z)) found += 1000;
    for (std::uint32_t error : {0xffffffffu, 0u, 1u}) {
      const float got = refined(z, divisor, from_bits(bits_of(1.0f / divisor) + error));
      if (got == expected) continue;
      ++found;
      std::printf("z = %a, reciprocal off by %d: %a, not %a\n", z, static_cast<int>(error), got, expected);
    }
  }
  return found;
}

}  // namespace

int main() {
  // Below 2^-26 the divisor is 2 and the halves are exact; from 20 on it is 1.
  const int found = exceptions(-0x1p-26f, -87.0f) + exceptions(0x1p-26f, 100.0f);
  std::printf("%d exceptions\n", found);
  return found <= 20 ? 0 : 1;
}
