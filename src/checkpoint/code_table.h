// The numbers of small floating-point codes, looked up: decoding a block of weights is bound by this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/float16.h"

namespace h3s::checkpoint {

// value_table<e4m3_value, 256, T>()[code] == from_float<T>(e4m3_value(code)).
template <float (*kValue)(std::uint8_t), std::size_t kCodes, typename T = float>
const std::array<T, kCodes>& value_table() {
  static const std::array<T, kCodes> table = [] {
    std::array<T, kCodes> values{};
    for (std::size_t code = 0; code < kCodes; ++code)
      values[code] = from_float<T>(kValue(static_cast<std::uint8_t>(code)));
    return values;
  }();
  return table;
}

}  // namespace h3s::checkpoint
