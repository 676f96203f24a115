// Counts what a test program asks of the heap, by operator new or by the C functions, on every thread.
#pragma once

#include <cstdint>

namespace h3s::test {

class HeapWatch {
 public:
  // Counts from here on requests of `at_least` bytes and more. One at a time.
  explicit HeapWatch(std::int64_t at_least);
  ~HeapWatch();
  HeapWatch(const HeapWatch&) = delete;
  HeapWatch& operator=(const HeapWatch&) = delete;

  std::int64_t bytes() const;

  // False where a sanitizer or another C library owns the heap.
  static bool works();
};

}  // namespace h3s::test
