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

// The array forms of the standard library call these. The sanitizers bring their own nothrow form, so it is
// here too.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  total += bytes;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(std::size_t bytes) {
  if (void* p = ::operator new(bytes, std::nothrow)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
