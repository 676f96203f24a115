// Cuts one block of memory into aligned pieces. With a null base it only measures.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "mem/accountant.h"

namespace h3s::model {

class Carver {
 public:
  explicit Carver(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}

  // A piece for `count` elements of T; null when measuring.
  template <typename T>
  T* take(std::int64_t count) {
    return static_cast<T*>(take_bytes(count * static_cast<std::int64_t>(sizeof(T))));
  }
  void* take_bytes(std::int64_t bytes) {
    const std::int64_t offset = used_;
    used_ += round_up(bytes, mem::kAlignment);
    return base_ == nullptr ? nullptr : base_ + offset;
  }
  std::int64_t used_bytes() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

}  // namespace h3s::model
