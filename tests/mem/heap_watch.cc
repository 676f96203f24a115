#include "mem/heap_watch.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define H3S_WATCHES_HEAP 1
#else
#define H3S_WATCHES_HEAP 0
#endif

namespace {

constexpr std::int64_t kOff = INT64_MAX;
std::atomic<std::int64_t> smallest_counted{kOff}, counted_bytes{0};

[[maybe_unused]] void count(std::size_t size) {
  const auto bytes = static_cast<std::int64_t>(size);
  if (bytes >= smallest_counted.load(std::memory_order_relaxed)) counted_bytes += bytes;
}

}  // namespace

#if H3S_WATCHES_HEAP
// The program's own definitions stand before the C library's; these names are the library's own workers.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* data, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) {
  count(bytes);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t n, std::size_t bytes) {
  count(n * bytes);
  return __libc_calloc(n, bytes);
}
void* realloc(void* data, std::size_t bytes) {
  count(bytes);
  return __libc_realloc(data, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  count(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** data, std::size_t alignment, std::size_t bytes) {
  count(bytes);
  *data = __libc_memalign(alignment, bytes);
  return *data == nullptr ? ENOMEM : 0;
}
}
#endif

namespace h3s::test {

HeapWatch::HeapWatch(std::int64_t at_least) {
  counted_bytes = 0;
  smallest_counted = at_least;
}
HeapWatch::~HeapWatch() {
  smallest_counted = kOff;
}
std::int64_t HeapWatch::bytes() const {
  return counted_bytes;
}
bool HeapWatch::works() {
  return H3S_WATCHES_HEAP != 0;
}

}  // namespace h3s::test
