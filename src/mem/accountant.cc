#include "mem/accountant.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/bytes.h"

namespace h3s::mem {
namespace {

thread_local const Accountant::Freeze* innermost_freeze = nullptr;

}  // namespace

struct Accountant::Books {
  std::int64_t budget = kUnlimited;
  std::int64_t current = 0, peak = 0;
  std::int64_t reserved = 0, peak_reserved = 0;
  std::deque<Holder> holders;  // owner_of() gives out their tags

  int holder(const std::string& tag) {
    for (std::size_t i = 0; i < holders.size(); ++i)
      if (holders[i].tag == tag) return static_cast<int>(i);
    holders.push_back({tag, 0, 0});
    return static_cast<int>(holders.size()) - 1;
  }
  Holder& at(int holder_idx) { return holders[static_cast<std::size_t>(holder_idx)]; }

  std::vector<Holder> by_size(std::int64_t Holder::*key) const {
    std::vector<Holder> sorted(holders.begin(), holders.end());
    std::erase_if(sorted, [key](const Holder& h) { return h.*key == 0; });
    std::stable_sort(sorted.begin(), sorted.end(),
                     [key](const Holder& a, const Holder& b) { return a.*key > b.*key; });
    return sorted;
  }

  std::string largest_holders() const {
    std::string text;
    int count = 0;
    for (const Holder& h : by_size(&Holder::bytes)) {
      if (count++ == 3) break;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", h.tag, format_bytes(h.bytes));
    }
    return text.empty() ? "nothing" : text;
  }

  SpaceReport totals() const;

  void mark_peak() {
    peak = current;
    for (Holder& h : holders) h.peak_bytes = h.bytes;
  }
};

Accountant::Accountant(std::unique_ptr<RawAllocator> raw)
    : raw_(std::move(raw)), books_(std::make_unique<std::array<Books, kNumSpaces>>()) {}

Accountant::~Accountant() = default;

Accountant::Books& Accountant::books(Space space) const {
  return (*books_)[index(space)];
}

void Accountant::set_budget(Space space, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  books(space).budget = bytes;
}

std::int64_t Accountant::budget(Space space) const {
  const std::lock_guard lock(mutex_);
  return books(space).budget;
}

Buffer Accountant::allocate(Space space, std::int64_t bytes, const std::string& tag) {
  H3S_ASSERT(bytes >= 0);
  require_unfrozen(space, bytes, tag);
  void* data = reserve(space, occupied_bytes(bytes), tag);
  return {*this, space, data, bytes, enter(space, data, bytes, tag, -1)};
}

void Accountant::release(Buffer& buffer) noexcept {
  leave(buffer, -1);
  unreserve(buffer.space(), buffer.data(), occupied_bytes(buffer.bytes()));
}

void* Accountant::reserve(Space space, std::int64_t bytes, const std::string& what, Pinning pinning) {
  const std::lock_guard lock(mutex_);
  Books& b = books(space);
  if (bytes > b.budget - b.reserved)
    fail(Status::kOverBudget, "[mem] {} budget {} cannot hold {} for {}: {} in use ({})", space_name(space),
         format_apart(b.budget, bytes)[0], format_apart(bytes, b.budget)[0], what, format_bytes(b.reserved),
         b.largest_holders());
  void* data = nullptr;
  try {
    const bool ordinary = space == Space::kPinned && pinning == Pinning::kOrdinaryMemory;
    data = ordinary ? raw_->allocate_unpinned(bytes) : raw_->allocate(space, bytes);
  } catch (const Error& e) {
    if (e.status() != Status::kOverBudget) throw;
    throw Refused(space, fmt::format("{} (for {})", e.what(), what));
  }
  b.reserved += bytes;
  b.peak_reserved = std::max(b.peak_reserved, b.reserved);
  return data;
}

void Accountant::unreserve(Space space, void* data, std::int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  raw_->release(space, data, bytes);
  books(space).reserved -= bytes;
}

Buffer::Ticket Accountant::enter(Space space, void* data, std::int64_t bytes, const std::string& tag,
                                 std::int64_t arena_offset) {
  const std::lock_guard lock(mutex_);
  Books& b = books(space);
  const int holder_idx = b.holder(tag);
  b.current += occupied_bytes(bytes);
  b.at(holder_idx).bytes += occupied_bytes(bytes);
  if (b.current > b.peak) b.mark_peak();
  if (data != nullptr) pieces_[data] = {bytes, space, holder_idx};
  const std::int64_t serial = ++last_serial_;
  if (observer_)
    observer_({MemoryEvent::Kind::kAllocate, space, bytes, tag, serial, arena_offset, b.current, b.reserved});
  return {.holder_idx = holder_idx, .serial = serial};
}

void Accountant::leave(const Buffer& buffer, std::int64_t arena_offset) noexcept {
  const std::lock_guard lock(mutex_);
  Books& b = books(buffer.space());
  Holder& holder = b.at(buffer.ticket().holder_idx);
  b.current -= occupied_bytes(buffer.bytes());
  holder.bytes -= occupied_bytes(buffer.bytes());
  pieces_.erase(buffer.data());
  if (observer_)
    observer_({MemoryEvent::Kind::kRelease, buffer.space(), buffer.bytes(), holder.tag,
               buffer.ticket().serial, arena_offset, b.current, b.reserved});
}

SpaceReport Accountant::Books::totals() const {
  return {.budget_bytes = budget,
          .current_bytes = current,
          .peak_bytes = peak,
          .reserved_bytes = reserved,
          .peak_reserved_bytes = peak_reserved,
          .holders = {}};
}

SpaceReport Accountant::report(Space space) const {
  const std::lock_guard lock(mutex_);
  SpaceReport report = books(space).totals();
  report.holders = books(space).by_size(&Holder::peak_bytes);
  return report;
}

SpaceReport Accountant::totals(Space space) const {
  const std::lock_guard lock(mutex_);
  return books(space).totals();
}

void Accountant::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (Books& b : *books_) {
    b.mark_peak();
    b.peak_reserved = b.reserved;
  }
}

void Accountant::observe(MemoryObserver observer) {
  const std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

std::optional<Accountant::Owner> Accountant::owner_of(const void* address) const {
  const std::lock_guard lock(mutex_);
  auto after = pieces_.upper_bound(address);
  if (after == pieces_.begin()) return {};
  const auto& [first, piece] = *--after;
  if (static_cast<const std::byte*>(address) - static_cast<const std::byte*>(first) >= piece.bytes) return {};
  return Owner{piece.space, &books(piece.space).at(piece.holder_idx).tag};
}

Accountant::Freeze::Freeze(const Accountant& accountant, const char* during)
    : accountant_(accountant), during_(during), outer_(std::exchange(innermost_freeze, this)) {}

Accountant::Freeze::~Freeze() {
  innermost_freeze = outer_;
}

void Accountant::require_unfrozen(Space space, std::int64_t bytes, const std::string& tag) const {
  for (const Freeze* f = innermost_freeze; f != nullptr; f = f->outer_)
    if (&f->accountant_ == this)
      fail(Status::kInternal, "[mem] {} asked for {} of {} memory during {}, which may allocate nothing", tag,
           format_bytes(bytes), space_name(space), f->during_);
}

}  // namespace h3s::mem
