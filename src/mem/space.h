// The kinds of memory, and how bytes of each are counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace h3s::mem {

// Where bytes live. On the CPU backend all three are ordinary memory, kept apart in the books.
enum class Space : int { kDevice = 0, kPinned = 1, kHost = 2 };
inline constexpr int kNumSpaces = 3;
inline constexpr std::array<Space, kNumSpaces> kSpaces{Space::kDevice, Space::kPinned, Space::kHost};
inline constexpr std::int64_t kAlignment =
    256;  // a GPU allocation granule; also a multiple of every SIMD width
inline constexpr std::int64_t kUnlimited = INT64_MAX;

const char* space_name(Space space);

constexpr std::size_t index(Space space) {
  return static_cast<std::size_t>(space);
}

// What a request of `bytes` occupies: kAlignment at least.
constexpr std::int64_t occupied_bytes(std::int64_t bytes) {
  return bytes <= 1 ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace h3s::mem
