#include "mem/raw_allocator.h"

#include <cstdlib>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#endif

namespace h3s::mem {
namespace {

constexpr int kPoison = 0xFF;

class HeapAllocator final : public RawAllocator {
 public:
  explicit HeapAllocator(bool poison) : poison_(poison) {}

  void* allocate(Space space, std::int64_t bytes) override {
    void* data = std::aligned_alloc(kAlignment, static_cast<std::size_t>(bytes));
    if (data == nullptr)
      fail(Status::kOverBudget, "[mem] the system refused {} of {} memory", format_bytes(bytes),
           space_name(space));
    if (poison_) std::memset(data, kPoison, static_cast<std::size_t>(bytes));
    return data;
  }
  void release(Space, void* data, std::int64_t bytes) noexcept override {
    ASAN_UNPOISON_MEMORY_REGION(data, static_cast<std::size_t>(bytes));
    std::free(data);
  }
  void hand_out(Space, void* data, std::int64_t bytes) override {
    ASAN_UNPOISON_MEMORY_REGION(data, static_cast<std::size_t>(bytes));
    if (poison_) std::memset(data, kPoison, static_cast<std::size_t>(bytes));
  }
  void take_back(Space, void* data, std::int64_t bytes) noexcept override {
    ASAN_POISON_MEMORY_REGION(data, static_cast<std::size_t>(bytes));
  }

 private:
  bool poison_;
};

class DryAllocator final : public RawAllocator {
 public:
  void* allocate(Space, std::int64_t) override { return nullptr; }
  void release(Space, void*, std::int64_t) noexcept override {}
};

}  // namespace

const char* space_name(Space space) {
  constexpr std::array<const char*, kNumSpaces> kNames{"device", "pinned", "host"};
  return kNames[index(space)];
}

std::unique_ptr<RawAllocator> make_heap_allocator(bool poison) {
  return std::make_unique<HeapAllocator>(poison);
}
std::unique_ptr<RawAllocator> make_dry_allocator() {
  return std::make_unique<DryAllocator>();
}

}  // namespace h3s::mem
