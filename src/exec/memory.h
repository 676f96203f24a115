// What every part of the executor shares: the backend, the books, and where each kind of bytes lives.
#pragma once

#include "base/error.h"
#include "kernels/backend.h"
#include "mem/accountant.h"

namespace h3s::exec {

struct Context {
  kernels::Backend& backend;
  mem::Accountant& accountant;
};

inline std::int64_t element_bytes(DType dtype) {
  return static_cast<std::int64_t>(dtype_size(dtype));
}

}  // namespace h3s::exec
