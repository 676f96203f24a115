#include "base/dtype.h"

#include <array>

#include "base/error.h"

namespace h3s {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<Row, 16> kRows{{
    {DType::kF64, "F64", 8},
    {DType::kF32, "F32", 4},
    {DType::kF16, "F16", 2},
    {DType::kBF16, "BF16", 2},
    {DType::kF8E4M3, "F8_E4M3", 1},
    {DType::kF8E5M2, "F8_E5M2", 1},
    {DType::kF8E8M0, "F8_E8M0", 1},
    {DType::kI64, "I64", 8},
    {DType::kI32, "I32", 4},
    {DType::kI16, "I16", 2},
    {DType::kI8, "I8", 1},
    {DType::kU64, "U64", 8},
    {DType::kU32, "U32", 4},
    {DType::kU16, "U16", 2},
    {DType::kU8, "U8", 1},
    {DType::kBool, "BOOL", 1},
}};

const Row& row(DType dtype) {
  const auto idx = static_cast<std::size_t>(dtype);
  H3S_ASSERT(idx < kRows.size() && kRows[idx].dtype == dtype);
  return kRows[idx];
}

}  // namespace

std::size_t dtype_size(DType dtype) {
  return row(dtype).size;
}

std::string_view dtype_name(DType dtype) {
  return row(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& r : kRows)
    if (r.name == name) return r.dtype;
  return std::nullopt;
}

}  // namespace h3s
