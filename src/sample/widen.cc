#include "sample/widen.h"

#include <cstring>

#include "base/error.h"
#include "base/float16.h"

namespace h3s::sample {
namespace {

template <typename T>
void widen_as(const std::byte* data, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    out[i] = to_float(value);
  }
}

}  // namespace

bool is_widenable(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

void widen(const std::byte* data, DType dtype, std::int64_t first, std::int64_t last, float* out) {
  const std::byte* start = data + first * static_cast<std::int64_t>(dtype_size(dtype));
  switch (dtype) {
    case DType::kF32:
      return widen_as<float>(start, last - first, out);
    case DType::kF16:
      return widen_as<F16>(start, last - first, out);
    case DType::kBF16:
      return widen_as<BF16>(start, last - first, out);
    default:
      fail(Status::kInternal, "[widen] no float32 values in {}", dtype_name(dtype));
  }
}

}  // namespace h3s::sample
