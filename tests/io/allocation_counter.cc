#include "allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> total{0};

}  // namespace

std::uint64_t h3s::allocated_bytes() {
  return total.load();
}

// The array, nothrow and sized forms of the standard library call these.
void* operator new(std::size_t bytes) {
  total += bytes;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
