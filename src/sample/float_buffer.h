// Accounted float32 arrays in host memory.
#pragma once

#include <cstdint>
#include <string>

#include "mem/accountant.h"

namespace h3s::sample {

// What the books count for an array of `count` floats.
inline std::int64_t float_buffer_bytes(std::int64_t count) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
  return (bytes + mem::kAlignment - 1) / mem::kAlignment * mem::kAlignment;
}

// Empty, and not in the books, when count is 0.
inline mem::Buffer allocate_floats(mem::Accountant& accountant, std::int64_t count, const std::string& tag) {
  if (count == 0) return {};
  return accountant.allocate(mem::Space::kHost, count * static_cast<std::int64_t>(sizeof(float)), tag);
}

}  // namespace h3s::sample
