// Buffers, and whatever hands them out and keeps the books: an Accountant, or an Arena in an Accountant's
// books.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mem/space.h"

namespace h3s::mem {

class Memory;

// Owns bytes of one space; gives them back on destruction. Movable, not copyable. Must not outlive the Memory
// it came from.
class Buffer {
 public:
  // Where a Memory finds the buffer in its own tables.
  struct Ticket {
    int holder_idx = -1;
    int placed_idx = -1;
    std::int64_t serial = 0;
  };

  Buffer() = default;
  Buffer(Memory& owner, Space space, void* data, std::int64_t bytes, Ticket ticket)
      : owner_(&owner), data_(data), bytes_(bytes), space_(space), ticket_(ticket) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  inline ~Buffer();

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::int64_t bytes() const { return bytes_; }  // as asked for
  Space space() const { return space_; }
  const Ticket& ticket() const { return ticket_; }

  void swap(Buffer& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(space_, other.space_);
    std::swap(ticket_, other.ticket_);
  }

 private:
  Memory* owner_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Space space_ = Space::kHost;
  Ticket ticket_;
};

struct Holder {
  std::string tag;
  std::int64_t bytes = 0;       // held now
  std::int64_t peak_bytes = 0;  // held at the moment of the space's peak
};

struct SpaceReport {
  std::int64_t budget_bytes = kUnlimited;
  std::int64_t current_bytes = 0;
  std::int64_t peak_bytes = 0;
  // Taken from the system: buffers outside arenas, and whole arenas whether handed out or not.
  std::int64_t reserved_bytes = 0;
  std::int64_t peak_reserved_bytes = 0;
  std::vector<Holder> holders;  // largest peak first
};

class Memory {
 public:
  virtual ~Memory() = default;

  // `tag` names the holder in reports and errors, for instance "K,V of the head group".
  virtual Buffer allocate(Space space, std::int64_t bytes, const std::string& tag) = 0;

  virtual SpaceReport report(Space space) const = 0;
  std::int64_t current_bytes(Space space) const { return report(space).current_bytes; }
  std::int64_t peak_bytes(Space space) const { return report(space).peak_bytes; }

 protected:
  friend class Buffer;
  virtual void release(Buffer& buffer) noexcept = 0;
};

inline Buffer::~Buffer() {
  if (owner_ != nullptr) owner_->release(*this);
}

}  // namespace h3s::mem
