// Rows of a stored weight as numbers, whatever its format.
#pragma once

#include <cstdint>
#include <span>

#include "base/float16.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/formats.h"

namespace h3s::checkpoint {

// Thread-safe. Holds pointers into the checkpoint's mapping: the checkpoint outlives it.
class WeightRows {
 public:
  WeightRows(const Checkpoint& checkpoint, const LinearSource& layer);

  std::int64_t n() const { return layer_.n; }
  std::int64_t k() const { return layer_.k; }

  // Row `row`, unrotated, into out [k]: as stored, or dequantised with nothing rounded after float.
  void read(std::int64_t row, std::span<float> out) const;
  // The same as stock's bf16 weight: plain weights rounded to nearest even, quantised ones dequantised in
  // bf16. `scratch` [k].
  void read(std::int64_t row, std::span<BF16> out, std::span<float> scratch) const;

  // Lets the system take back the pages of the weight that were read.
  void release_pages() const;

 private:
  void read_as(std::int64_t row, DType type, std::span<float> out) const;

  LinearSource layer_;
  io::SafetensorsReader file_;
};

// Elements [begin, begin + out.size()) of an F32, BF16 or F16 tensor as floats, exactly.
void read_floats(const io::SafetensorsReader& file, const io::TensorInfo& info, std::int64_t begin,
                 std::span<float> out);

}  // namespace h3s::checkpoint
