#include "base/finite.h"

#include <algorithm>
#include <cstring>

#include "base/dispatch.h"

namespace h3s {
namespace {

template <typename T>
struct Pattern;
template <>
struct Pattern<float> {
  using Bits = std::uint32_t;
  static constexpr Bits kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;
};
template <>
struct Pattern<BF16> {
  using Bits = std::uint16_t;
  static constexpr Bits kMagnitude = 0x7FFF, kInfinity = 0x7F80;
};
template <>
struct Pattern<F16> {
  using Bits = std::uint16_t;
  static constexpr Bits kMagnitude = 0x7FFF, kInfinity = 0x7C00;
};

// Magnitudes order like their bits, and no number's are as large as infinity's: an integer maximum is enough,
// and compiles to vector code.
template <typename T>
std::int64_t find_in(const std::byte* data, std::int64_t n) {
  using Bits = typename Pattern<T>::Bits;
  constexpr std::int64_t kPiece = 1024;
  Bits piece[kPiece];
  for (std::int64_t first = 0; first < n; first += kPiece) {
    const std::int64_t count = std::min(kPiece, n - first);
    std::memcpy(piece, data + first * std::int64_t{sizeof(T)}, static_cast<std::size_t>(count) * sizeof(T));
    const auto magnitude = [](Bits bits) { return static_cast<Bits>(bits & Pattern<T>::kMagnitude); };
    Bits largest = 0;
    for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude(piece[i]));
    if (largest < Pattern<T>::kInfinity) continue;
    return first + (std::find_if(piece, piece + count,
                                 [&](Bits bits) { return magnitude(bits) >= Pattern<T>::kInfinity; }) -
                    piece);
  }
  return -1;
}

}  // namespace

std::int64_t find_non_finite(const std::byte* data, DType dtype, std::int64_t n) {
  std::int64_t found = -1;
  dispatch_dtype<float, BF16, F16>(dtype, "find_non_finite",
                                   [&]<typename T>() { found = find_in<T>(data, n); });
  return found;
}

}  // namespace h3s
