#include "base/bytes.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace h3s {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array<Unit, 13> kUnits{{
    {"", 1},
    {"b", 1},
    {"k", 1024},
    {"kb", 1e3},
    {"kib", 1024.0},
    {"mb", 1e6},
    {"mib", 1048576.0},
    {"gb", 1e9},
    {"gib", 1073741824.0},
    {"tb", 1e12},
    {"tib", 1099511627776.0},
    {"m", 1048576.0},
    {"g", 1073741824.0},
}};

[[noreturn]] void bad(std::string_view text) {
  fail(Status::kInvalidArgument, "[bytes] expected a positive size such as 512MiB, 8GiB or 1.5GB, got \"{}\"",
       text);
}

}  // namespace

std::int64_t parse_bytes(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value) || value <= 0) bad(text);
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c)
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  for (const Unit& u : kUnits) {
    if (u.name != unit) continue;
    const double bytes = value * u.bytes;
    if (bytes < 1 || bytes > 0x1p62) bad(text);
    return static_cast<std::int64_t>(bytes);
  }
  bad(text);
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t idx = 0;
  while (std::abs(value) >= 1024 && idx + 1 < kNames.size()) {
    value /= 1024;
    ++idx;
  }
  return idx == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kNames[idx]);
}

}  // namespace h3s
