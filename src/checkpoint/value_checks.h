// Stored values that no network has: NaN, infinities, scales that are no sizes. One of them spoils every
// token, or is lost in a maximum and makes finite nonsense.
#pragma once

#include <cstdint>
#include <string>

#include "base/float8.h"
#include "io/safetensors.h"

namespace h3s::checkpoint {

// Norms square what comes out of a layer. Under this scale the square of a weight is still a float, whatever
// the format: 57344 is the largest number of any code, and 57344 . 2^48 < 2^64. Scales of networks are
// below 1.
inline constexpr float kLargestScale = 0x1p48f;

// Plain weights up to this size are read when a file is opened: norms, biases, tables, islands, the
// modulation of the curve form; 0.1 s of a file of real size. NaN in a larger one is met by the sampler's
// check of its latents.
inline constexpr std::uint64_t kCheckedBytes = std::uint64_t{16} << 20;

// Scales that are codes: those above `last` are NaN, negative or too large.
struct CodeScales {
  float (*value)(std::uint8_t);
  std::uint8_t last;
};
inline constexpr CodeScales kE4M3Scales{e4m3_value, 0x7E}, kE8M0Scales{e8m0_value, 127 + 48};

// Each reads the whole tensor and says what is wrong with its first bad value, "value 3 is nan"; empty when
// nothing is, or the file is a table without data. F32, F16 or BF16: any finite number.
std::string value_problem(const io::SafetensorsReader& file, const io::TensorInfo& info);
// F32: above 0, or with `zero_too` from 0 on, to kLargestScale.
std::string scale_problem(const io::SafetensorsReader& file, const io::TensorInfo& info, bool zero_too);
// One byte each.
std::string scale_problem(const io::SafetensorsReader& file, const io::TensorInfo& info,
                          const CodeScales& scales);

}  // namespace h3s::checkpoint
