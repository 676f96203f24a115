// Argument checks shared by the ops. `op` is the name in brackets of the message.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace h3s::ops {

inline void check_dtype(const char* op, const char* what, DType dtype, std::initializer_list<DType> allowed) {
  std::string names;
  for (const DType a : allowed) {
    if (a == dtype) return;
    names += (names.empty() ? "" : ", ") + std::string(dtype_name(a));
  }
  fail(Status::kUnsupported, "[{}] {} must be one of {}, got {}", op, what, names, dtype_name(dtype));
}

inline void check_positive(const char* op, const char* what, std::int64_t value) {
  if (value <= 0) fail(Status::kInvalidArgument, "[{}] {} must be at least 1, got {}", op, what, value);
}

inline void check_pointer(const char* op, const char* what, const void* pointer) {
  if (pointer == nullptr) fail(Status::kInvalidArgument, "[{}] {} must not be null", op, what);
}

inline void check_stride(const char* op, const char* what, std::int64_t stride, std::int64_t columns) {
  if (stride < columns)
    fail(Status::kInvalidArgument, "[{}] {} must be at least the {} columns of a row, got {}", op, what,
         columns, stride);
}

}  // namespace h3s::ops
