#include "checkpoint/weight_rows.h"

#include <cstring>

#include "base/dispatch.h"
#include "base/error.h"

namespace h3s::checkpoint {

WeightRows::WeightRows(const Checkpoint& checkpoint, const LinearSource& layer)
    : layer_(layer), file_(checkpoint.file()) {}

void WeightRows::read(std::int64_t row, std::span<float> out) const {
  read_as(row, DType::kF32, out);
}

void WeightRows::read(std::int64_t row, std::span<BF16> out, std::span<float> scratch) const {
  const std::span<float> values = scratch.first(out.size());
  read_as(row, DType::kBF16, values);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = to_bf16(values[i]);
}

void WeightRows::read_as(std::int64_t row, DType type, std::span<float> out) const {
  H3S_ASSERT(row >= 0 && row < layer_.n && std::ssize(out) == layer_.k);
  if (layer_.plain())
    read_floats(file_, *layer_.weight, row * layer_.k, out);
  else
    format_row(layer_.format).rows.dequantize(StoredLayer(file_, layer_), row, type, out.data());
}

void WeightRows::release_pages() const {
  file_.release_pages(file_.data(*layer_.weight), layer_.weight->bytes());
}

void read_floats(const io::SafetensorsReader& file, const io::TensorInfo& info, std::int64_t begin,
                 std::span<float> out) {
  dispatch_dtype<float, BF16, F16>(info.dtype, "read_floats", [&]<typename T>() {
    const std::byte* at = file.data(info) + static_cast<std::size_t>(begin) * sizeof(T);
    for (std::size_t i = 0; i < out.size(); ++i) {
      T value;
      std::memcpy(&value, at + i * sizeof(T), sizeof(T));  // may be unaligned
      out[i] = to_float(value);
    }
  });
}

}  // namespace h3s::checkpoint
