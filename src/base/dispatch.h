// dtype dispatch: once, at the launcher. The lambda is called with the storage type as template argument.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/float16.h"

namespace h3s {

template <typename T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<BF16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<F16> = DType::kF16;

// dispatch_dtype<float, BF16>(dtype, "rms_norm", [&]<typename T>() { ... });
template <typename... Ts, typename Fn>
void dispatch_dtype(DType dtype, std::string_view op, Fn&& fn) {
  const bool found =
      ((dtype == kDTypeOf<Ts> ? (std::forward<Fn>(fn).template operator()<Ts>(), true) : false) || ...);
  if (found) return;
  std::string allowed;
  ((allowed += (allowed.empty() ? "" : ", ") + std::string(dtype_name(kDTypeOf<Ts>))), ...);
  fail(Status::kUnsupported, "[{}] dtype must be one of {}, got {}", op, allowed, dtype_name(dtype));
}

}  // namespace h3s
