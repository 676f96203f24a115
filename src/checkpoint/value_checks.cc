#include "checkpoint/value_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/finite.h"
#include "checkpoint/weight_rows.h"

namespace h3s::checkpoint {
namespace {

float float_at(const io::SafetensorsReader& file, const io::TensorInfo& info, std::int64_t idx) {
  float value = 0;
  read_floats(file, info, idx, {&value, 1});
  return value;
}

}  // namespace

std::string value_problem(const io::SafetensorsReader& file, const io::TensorInfo& info) {
  if (!file.has_data()) return "";
  const std::int64_t bad = find_non_finite(file.data(info), info.dtype, info.elements());
  return bad < 0 ? ""
                 : fmt::format("value {} is {}, expected a finite number", bad, float_at(file, info, bad));
}

std::string scale_problem(const io::SafetensorsReader& file, const io::TensorInfo& info, bool zero_too) {
  if (!file.has_data()) return "";
  for (std::int64_t i = 0; i < info.elements(); ++i) {
    const float value = float_at(file, info, i);
    const bool large_enough = zero_too ? value >= 0 : value > 0;
    if (!large_enough || !(value <= kLargestScale))
      return fmt::format("scale {} is {:g}, expected {} 0, at most {:g}", i, value,
                         zero_too ? "at least" : "above", kLargestScale);
  }
  return "";
}

std::string scale_problem(const io::SafetensorsReader& file, const io::TensorInfo& info,
                          const CodeScales& scales) {
  if (!file.has_data()) return "";
  const auto* codes = reinterpret_cast<const std::uint8_t*>(file.data(info));
  // A maximum first: it compiles to vector code, and formats with a scale every 16 weights have 10^9 of them.
  std::uint8_t largest = 0;
  for (std::int64_t i = 0; i < info.elements(); ++i) largest = std::max(largest, codes[i]);
  if (largest <= scales.last) return "";
  const auto* bad =
      std::find_if(codes, codes + info.elements(), [&](std::uint8_t code) { return code > scales.last; });
  return fmt::format("scale {} is {:g}, expected at least 0, at most {:g}", bad - codes, scales.value(*bad),
                     scales.value(scales.last));
}

}  // namespace h3s::checkpoint
