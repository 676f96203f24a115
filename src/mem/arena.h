// One block of memory a space, taken from the system once, handed out as a placement says.
//
// Requests must be those the placement was made from, in the same order: the k-th is given the k-th buffer's
// address. One that differs throws Error(kInternal) naming both, as does one that comes while a buffer is
// still alive that the placement laid in the same bytes. Books are kept by the accountant, tag by tag.
#pragma once

#include <string>

#include "mem/placement.h"

namespace h3s::mem {

// Not thread-safe. Outlives its buffers; the accountant outlives it.
class Arena final : public Memory {
 public:
  // Throws Refused when the system has not the memory, Error(kOverBudget) when a budget has not. `what` names
  // the arena in errors, for instance "the session".
  Arena(Accountant& accountant, Placement placement, const std::string& what,
        Pinning pinning = Pinning::kReal);
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Buffer allocate(Space space, std::int64_t bytes, const std::string& tag) override;
  SpaceReport report(Space space) const override { return accountant_.report(space); }

  Accountant& accountant() const { return accountant_; }
  std::int64_t arena_bytes(Space space) const { return placement_.arena_bytes[index(space)]; }

  // Requests served so far, and going back to such a point to run a part of the sequence again; everything
  // handed out since must be back.
  std::size_t position() const { return next_; }
  void rewind(std::size_t position);

  // Throws Error(kInternal) naming `phase` unless, in every space, what the arena has handed out is within
  // its size, and what the books hold is within the budget. A few comparisons.
  void require_within_plan(const char* phase) const;

 protected:
  void release(Buffer& buffer) noexcept override;

 private:
  void release_blocks() noexcept;
  void require_recorded(Space space, std::int64_t bytes, const std::string& tag) const;
  void require_free(const Placed& wanted) const;

  Accountant& accountant_;
  Placement placement_;
  std::array<void*, kNumSpaces> blocks_{};
  std::array<std::int64_t, kNumSpaces> live_bytes_{}, peak_bytes_{};
  std::vector<bool> live_;  // of each buffer of the placement
  std::size_t next_ = 0;
};

}  // namespace h3s::mem
