// Floating-point numbers of eight bits and fewer: decoding is exact, rounding is to nearest even.
//
//   E4M3  sign, 4 exponent bits (bias 7), 3 mantissa bits; 448 is the largest; 0x7F and 0xFF are NaN; no
//   infinity
//   E5M2  as binary16 cut short: 57344 is the largest; 0x7C is infinity, 0x7D to 0x7F are NaN
//   E2M1  0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; bit 3 is the sign
//   E8M0  2^(e - 127); 255 is NaN
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace h3s {

// kMinExponent: exponent of the smallest normal number; below, numbers are multiples of kStep.
struct E4M3 {
  static constexpr int kMantissaBits = 3, kBias = 7, kMinExponent = -6;
  static constexpr float kLargest = 448, kStep = 0x1p-9f;
  static constexpr std::uint8_t kSign = 0x80;
};
struct E5M2 {
  static constexpr int kMantissaBits = 2, kBias = 15, kMinExponent = -14;
  static constexpr float kLargest = 57344, kStep = 0x1p-16f;
  static constexpr std::uint8_t kSign = 0x80;
};
struct E2M1 {
  static constexpr int kMantissaBits = 1, kBias = 1, kMinExponent = 0;
  static constexpr float kLargest = 6, kStep = 0.5f;
  static constexpr std::uint8_t kSign = 0x08;
};

// The number of format F nearest to x, ties to the even mantissa; beyond the largest, the largest; NaN is
// NaN, in formats without one too. No branches, so that loops over it become vector code.
template <typename F>
inline float round_small(float x) {
  constexpr int kDropped = 23 - F::kMantissaBits;
  constexpr std::uint32_t kHalf = (1u << (kDropped - 1)) - 1;
  constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(127 + F::kMinExponent) << 23;
  constexpr std::uint32_t kNormals = std::bit_cast<std::uint32_t>(F::kLargest) - kSmallestNormal;
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = u & 0x80000000u;
  const float magnitude = std::bit_cast<float>(u & 0x7FFFFFFFu);
  const float bounded = magnitude > F::kLargest ? F::kLargest : magnitude;
  const std::uint32_t b = std::bit_cast<std::uint32_t>(bounded);
  const float normal = std::bit_cast<float>((b + kHalf + ((b >> kDropped) & 1u)) & ~((1u << kDropped) - 1));
  // Adding 2^23 steps leaves no bits below one step, and NaN as it is.
  constexpr float kAlign = F::kStep * 0x1p23f;
  const float subnormal = (bounded + kAlign) - kAlign;
  const float rounded = b - kSmallestNormal <= kNormals ? normal : subnormal;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) | sign);
}

// The code of a number that F holds exactly (a result of round_small). -0 keeps its sign.
template <typename F>
inline std::uint8_t small_code(float value) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint8_t sign = (u & 0x80000000u) != 0 ? F::kSign : std::uint8_t{0};
  const float magnitude = std::fabs(value);
  if (magnitude < std::ldexp(1.0f, F::kMinExponent))
    return static_cast<std::uint8_t>(sign | static_cast<std::uint8_t>(magnitude / F::kStep));
  const std::uint32_t exponent = ((u >> 23) & 0xFFu) - 127u + static_cast<std::uint32_t>(F::kBias);
  const std::uint32_t mantissa = (u & 0x7FFFFFu) >> (23 - F::kMantissaBits);
  return static_cast<std::uint8_t>(sign | exponent << F::kMantissaBits | mantissa);
}

// The number of a code; for codes that are no number see the names below.
template <typename F>
inline float small_value(std::uint8_t code) {
  const std::uint32_t magnitude = code & static_cast<std::uint32_t>(F::kSign - 1);
  const float sign = (code & F::kSign) != 0 ? -1.0f : 1.0f;
  const std::uint32_t exponent = magnitude >> F::kMantissaBits;
  if (exponent == 0) return sign * static_cast<float>(magnitude) * F::kStep;
  const std::uint32_t bits =
      (magnitude << (23 - F::kMantissaBits)) + (static_cast<std::uint32_t>(127 - F::kBias) << 23);
  return sign * std::bit_cast<float>(bits);
}

inline float e4m3_value(std::uint8_t code) {
  return (code & 0x7F) == 0x7F ? std::numeric_limits<float>::quiet_NaN() : small_value<E4M3>(code);
}
inline float e5m2_value(std::uint8_t code) {
  if ((code & 0x7F) > 0x7C) return std::numeric_limits<float>::quiet_NaN();
  if ((code & 0x7F) == 0x7C)
    return code == 0x7C ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
  return small_value<E5M2>(code);
}
inline float e2m1_value(std::uint8_t code) {
  return small_value<E2M1>(code);
}
inline float e8m0_value(std::uint8_t code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, int{code} - 127);
}

}  // namespace h3s
