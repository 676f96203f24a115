// What the definition and the vector form of attention share.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace h3s::cpu {

inline constexpr std::int64_t kAttentionKeyTile = 64;  // part of the contract: fixed for every call

inline constexpr float kLn2 = 0x1.62e43p-1f;
inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Natural logarithm, from the base-2 running maximum and sum.
inline float log_sum_exp(float m, float l) {
  return (m + static_cast<float>(std::log2(static_cast<double>(l)))) * kLn2;
}

}  // namespace h3s::cpu
