// What really hands out the bytes of a space: the system's heap, a GPU's driver, or nothing in a dry run.
#pragma once

#include <memory>

#include "mem/space.h"

namespace h3s::mem {

class RawAllocator {
 public:
  virtual ~RawAllocator() = default;
  // Never null but in a dry run. Throws Error(kOverBudget) when the system refuses.
  virtual void* allocate(Space space, std::int64_t bytes) = 0;
  virtual void release(Space space, void* data, std::int64_t bytes) noexcept = 0;
  // Ordinary memory to serve as pinned where pinning was refused: copies are slower and do not overlap.
  // Released as Space::kPinned.
  virtual void* allocate_unpinned(std::int64_t bytes) { return allocate(Space::kPinned, bytes); }

  // A piece of one allocation goes to a new owner, or is owned by nobody until it does. For checks only:
  // poison makes a read before a write, or after the release, show.
  virtual void hand_out(Space, void* /*data*/, std::int64_t /*bytes*/) {}
  virtual void take_back(Space, void* /*data*/, std::int64_t /*bytes*/) noexcept {}
};

// Aligned heap memory. `poison`: fills every new buffer with 0xFF bytes (a NaN in each float type), so that a
// read before a write shows. Under AddressSanitizer, bytes nobody owns are out of bounds.
std::unique_ptr<RawAllocator> make_heap_allocator(bool poison = false);

// Hands out null pointers: only the books are kept.
std::unique_ptr<RawAllocator> make_dry_allocator();

}  // namespace h3s::mem
