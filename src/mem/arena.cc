#include "mem/arena.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace h3s::mem {
namespace {

std::string describe(Space space, std::int64_t bytes, const std::string& tag) {
  return fmt::format("{} of {} memory for {}", format_bytes(bytes), space_name(space), tag);
}

}  // namespace

Arena::Arena(Accountant& accountant, Placement placement, const std::string& what, Pinning pinning)
    : accountant_(accountant), placement_(std::move(placement)), live_(placement_.buffers.size(), false) {
  try {
    for (const Space space : kSpaces) {
      const std::int64_t bytes = arena_bytes(space);
      if (bytes == 0) continue;
      void* block = accountant_.reserve(space, bytes, what, pinning);
      blocks_[index(space)] = block;
      accountant_.raw_->take_back(space, block, bytes);
    }
  } catch (...) {
    release_blocks();
    throw;
  }
}

Arena::~Arena() {
  release_blocks();
}

void Arena::release_blocks() noexcept {
  for (const Space space : kSpaces)
    if (void* block = std::exchange(blocks_[index(space)], nullptr))
      accountant_.unreserve(space, block, arena_bytes(space));
}

void Arena::require_recorded(Space space, std::int64_t bytes, const std::string& tag) const {
  if (next_ == placement_.buffers.size())
    fail(Status::kInternal, "[arena] {} is request {}, and {} were planned", describe(space, bytes, tag),
         next_ + 1, placement_.buffers.size());
  const Placed& planned = placement_.buffers[next_];
  if (planned.space != space || planned.bytes != bytes || planned.tag != tag)
    fail(Status::kInternal, "[arena] request {} was planned as {}, got {}", next_ + 1,
         describe(planned.space, planned.bytes, planned.tag), describe(space, bytes, tag));
}

void Arena::require_free(const Placed& wanted) const {
  for (std::size_t i = 0; i < placement_.buffers.size(); ++i) {
    const Placed& other = placement_.buffers[i];
    if (live_[i] && other.space == wanted.space && other.touches(wanted))
      fail(Status::kInternal, "[arena] {} needs the bytes of {}, which was to be released before",
           describe(wanted.space, wanted.bytes, wanted.tag), other.tag);
  }
}

Buffer Arena::allocate(Space space, std::int64_t bytes, const std::string& tag) {
  accountant_.require_unfrozen(space, bytes, tag);
  require_recorded(space, bytes, tag);
  const Placed& placed = placement_.buffers[next_];
  require_free(placed);
  void* data = static_cast<std::byte*>(blocks_[index(space)]) + placed.offset;
  accountant_.raw_->hand_out(space, data, bytes);
  Buffer::Ticket ticket = accountant_.enter(space, data, bytes, tag, placed.offset);
  ticket.placed_idx = static_cast<int>(next_);
  live_[next_++] = true;
  std::int64_t& live_bytes = live_bytes_[index(space)];
  live_bytes += occupied_bytes(bytes);
  peak_bytes_[index(space)] = std::max(peak_bytes_[index(space)], live_bytes);
  return {*this, space, data, bytes, ticket};
}

void Arena::release(Buffer& buffer) noexcept {
  const auto placed_idx = static_cast<std::size_t>(buffer.ticket().placed_idx);
  accountant_.leave(buffer, placement_.buffers[placed_idx].offset);
  accountant_.raw_->take_back(buffer.space(), buffer.data(), occupied_bytes(buffer.bytes()));
  live_bytes_[index(buffer.space())] -= occupied_bytes(buffer.bytes());
  live_[placed_idx] = false;
}

void Arena::rewind(std::size_t position) {
  H3S_ASSERT(position <= next_);
  for (std::size_t i = position; i < next_; ++i)
    if (live_[i])
      fail(Status::kInternal, "[arena] {} is still held where its part of the plan starts again",
           placement_.buffers[i].tag);
  next_ = position;
}

void Arena::require_within_plan(const char* phase) const {
  for (const Space space : kSpaces) {
    const SpaceReport books = accountant_.totals(space);
    if (peak_bytes_[index(space)] > arena_bytes(space))
      fail(Status::kInternal, "[arena] at {}: {} of {} memory were handed out, {} were planned", phase,
           format_bytes(peak_bytes_[index(space)]), space_name(space), format_bytes(arena_bytes(space)));
    if (books.reserved_bytes > books.budget_bytes || books.current_bytes > books.reserved_bytes)
      fail(Status::kInternal, "[arena] at {}: {} of {} memory are held, {} taken, the budget is {}", phase,
           format_bytes(books.current_bytes), space_name(space), format_bytes(books.reserved_bytes),
           format_bytes(books.budget_bytes));
  }
}

}  // namespace h3s::mem
