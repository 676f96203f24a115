// bfloat16 and binary16 as storage types: bits in memory, float in arithmetic.
//
// Rounding is to nearest, ties to even, everywhere. NaN stays NaN (quieted), infinities stay.
#pragma once

#include <bit>
#include <cstdint>

namespace h3s {

struct BF16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

inline float to_float(float x) {
  return x;
}
inline float to_float(BF16 x) {
  return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
}

inline float to_float(F16 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
  const std::uint32_t magnitude = x.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // Scaling by 2^112 moves the binary16 exponent to the binary32 one, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

inline BF16 to_bf16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return BF16{static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return BF16{static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

inline F16 to_f16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint16_t sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return F16{static_cast<std::uint16_t>(sign | 0x7E00u)};
  if (magnitude >= 0x477FF000u) return F16{static_cast<std::uint16_t>(sign | 0x7C00u)};  // rounds past 65504
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 aligns the subnormal grid with float's last bit
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return F16{static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3F000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return F16{static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

// Rounds a float to T and widens it again: the "bf(x)" of the specifications when T is BF16.
template <typename T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline BF16 from_float<BF16>(float x) {
  return to_bf16(x);
}
template <>
inline F16 from_float<F16>(float x) {
  return to_f16(x);
}

template <typename T>
float round_to(float x) {
  return to_float(from_float<T>(x));
}

}  // namespace h3s
