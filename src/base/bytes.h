// Byte counts as people write and read them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace h3s {

// "512MiB", "8GiB", "1.5GB", "4096": a positive number with an optional unit out of B, KB, MB, GB, TB (powers
// of 1000) and KiB, MiB, GiB, TiB or Ki, K, ... (powers of 1024); case and spaces around either are ignored.
// Throws Error(kInvalidArgument) that names the text on anything else.
inline constexpr std::string_view kByteCountText =
    "a size above 0 such as 512MiB, 8GiB or 1.5GB (B; KB, MB, GB, TB; KiB, MiB, GiB, TiB)";
std::int64_t parse_bytes(std::string_view text);

// "1.23 GiB", "456 B".
std::string format_bytes(std::int64_t bytes);

// Two counts to be compared: as format_bytes, but in bytes where that would show different ones as equal.
std::array<std::string, 2> format_apart(std::int64_t a, std::int64_t b);

// The smallest multiple of `granule` that is not less.
constexpr std::int64_t round_up(std::int64_t bytes, std::int64_t granule) {
  return (bytes + granule - 1) / granule * granule;
}

}  // namespace h3s
