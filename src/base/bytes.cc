#include "base/bytes.h"

#include <algorithm>
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

constexpr std::array<Unit, 18> kUnits{{
    {"", 1},
    {"b", 1},
    {"k", 1024},
    {"kb", 1e3},
    {"ki", 1024},
    {"kib", 1024},
    {"m", 0x1p20},
    {"mb", 1e6},
    {"mi", 0x1p20},
    {"mib", 0x1p20},
    {"g", 0x1p30},
    {"gb", 1e9},
    {"gi", 0x1p30},
    {"gib", 0x1p30},
    {"t", 0x1p40},
    {"tb", 1e12},
    {"ti", 0x1p40},
    {"tib", 0x1p40},
}};

[[noreturn]] void bad(std::string_view text) {
  fail(Status::kInvalidArgument, "[bytes] expected {}, got \"{}\"", kByteCountText, text);
}

}  // namespace

std::int64_t parse_bytes(std::string_view text) {
  double value = 0;
  const std::size_t first = std::min(text.find_first_not_of(' '), text.size());
  const auto [end, error] = std::from_chars(text.data() + first, text.data() + text.size(), value);
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

std::array<std::string, 2> format_apart(std::int64_t a, std::int64_t b) {
  std::array<std::string, 2> texts{format_bytes(a), format_bytes(b)};
  if (a != b && texts[0] == texts[1]) texts = {fmt::format("{} B", a), fmt::format("{} B", b)};
  return texts;
}

}  // namespace h3s
