// The numbers of small floating-point codes, looked up: decoding a block of weights is bound by this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace h3s::checkpoint {

// value_table<e4m3_value, 256>()[code] == e4m3_value(code).
template <float (*kValue)(std::uint8_t), std::size_t kCodes>
const std::array<float, kCodes>& value_table() {
  static const std::array<float, kCodes> table = [] {
    std::array<float, kCodes> values{};
    for (std::size_t code = 0; code < kCodes; ++code) values[code] = kValue(static_cast<std::uint8_t>(code));
    return values;
  }();
  return table;
}

}  // namespace h3s::checkpoint
