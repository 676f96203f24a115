// Element types, with the names and sizes of the safetensors format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace h3s {

enum class DType : std::uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

// Bytes of one element.
std::size_t dtype_size(DType dtype);

// The safetensors name, for instance "BF16" or "F8_E4M3".
std::string_view dtype_name(DType dtype);

// The inverse of dtype_name; empty when the name is unknown.
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace h3s
