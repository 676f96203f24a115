// The accounting allocator: every buffer of the engine is in its books, so that peaks are known and budgets
// hold.
//
// Bytes are counted as asked for, rounded up to kAlignment; a request that would pass the budget of its space
// throws Error(kOverBudget) naming the need, the budget and the largest holders, and changes nothing.
// Thread-safe. A Buffer may outlive no Accountant.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "mem/memory.h"
#include "mem/raw_allocator.h"

namespace h3s::mem {

// The system refused memory that the books had room for: another process holds it, or it cannot be pinned.
class Refused : public Error {
 public:
  Refused(Space space, const std::string& text) : Error(Status::kOverBudget, text), space_(space) {}
  Space space() const { return space_; }

 private:
  Space space_;
};

// A buffer comes or goes. Called under the books' lock: an observer must not call back.
struct MemoryEvent {
  enum class Kind { kAllocate, kRelease } kind = Kind::kAllocate;
  Space space = Space::kHost;
  std::int64_t bytes = 0;           // as asked for
  const std::string& tag;           // of the holder
  std::int64_t serial = 0;          // the same for a buffer's two events; counts up
  std::int64_t arena_offset = -1;   // -1: not in an arena
  std::int64_t held_bytes = 0;      // of the space, after the event
  std::int64_t reserved_bytes = 0;  // of the space: see SpaceReport
};
// What Space::kPinned is made of.
enum class Pinning { kReal, kOrdinaryMemory };
using MemoryObserver = std::function<void(const MemoryEvent&)>;

class Accountant final : public Memory {
 public:
  explicit Accountant(std::unique_ptr<RawAllocator> raw);
  ~Accountant() override;
  Accountant(const Accountant&) = delete;
  Accountant& operator=(const Accountant&) = delete;

  void set_budget(Space space, std::int64_t bytes);
  std::int64_t budget(Space space) const;

  Buffer allocate(Space space, std::int64_t bytes, const std::string& tag) override;
  SpaceReport report(Space space) const override;
  SpaceReport totals(Space space) const;  // without the holders: cheap

  // Starts a new peak at what is held now.
  void reset_peaks();

  // One observer at a time; an empty one ends it.
  void observe(MemoryObserver observer);

  // Which buffer an address lies in: its space and its holder's tag. Empty for memory not in the books.
  struct Owner {
    Space space = Space::kHost;
    const std::string* tag = nullptr;  // lives as long as the Accountant
  };
  std::optional<Owner> owner_of(const void* address) const;

  // While it lives, its thread is handed nothing out of these books, arenas included: a request is
  // Error(kInternal) that names it. Held during a forward, where every byte was planned before.
  class Freeze {
   public:
    Freeze(const Accountant& accountant, const char* during);
    ~Freeze();
    Freeze(const Freeze&) = delete;
    Freeze& operator=(const Freeze&) = delete;

   private:
    friend class Accountant;
    const Accountant& accountant_;
    const char* during_;
    const Freeze* outer_;
  };

 protected:
  void release(Buffer& buffer) noexcept override;

 private:
  friend class Arena;
  struct Books;
  struct Piece {
    std::int64_t bytes = 0;  // as asked for
    Space space = Space::kHost;
    int holder_idx = -1;
  };

  Books& books(Space space) const;
  void require_unfrozen(Space space, std::int64_t bytes, const std::string& tag) const;

  // Bytes from the system, within the budget; `what` names them in the refusal.
  void* reserve(Space space, std::int64_t bytes, const std::string& what, Pinning pinning = Pinning::kReal);
  void unreserve(Space space, void* data, std::int64_t bytes) noexcept;
  // A buffer appears in the books, or leaves them; its bytes are reserved.
  Buffer::Ticket enter(Space space, void* data, std::int64_t bytes, const std::string& tag,
                       std::int64_t arena_offset);
  void leave(const Buffer& buffer, std::int64_t arena_offset) noexcept;

  std::unique_ptr<RawAllocator> raw_;
  mutable std::mutex mutex_;
  std::unique_ptr<std::array<Books, kNumSpaces>> books_;
  std::map<const void*, Piece> pieces_;  // by first byte
  std::int64_t last_serial_ = 0;
  MemoryObserver observer_;
};

}  // namespace h3s::mem
