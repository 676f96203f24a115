#include "mem/accountant.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace h3s::mem {
namespace {

std::int64_t round_up(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class HeapAllocator final : public RawAllocator {
 public:
  explicit HeapAllocator(bool poison) : poison_(poison) {}

  void* allocate(Space space, std::int64_t bytes) override {
    void* data = std::aligned_alloc(kAlignment, static_cast<std::size_t>(bytes));
    if (data == nullptr)
      fail(Status::kOverBudget, "[mem] the system refused {} of {} memory", format_bytes(bytes),
           space_name(space));
    if (poison_) std::memset(data, 0xFF, static_cast<std::size_t>(bytes));
    return data;
  }
  void release(Space, void* data, std::int64_t) noexcept override { std::free(data); }

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
  return kNames[static_cast<std::size_t>(space)];
}

std::unique_ptr<RawAllocator> make_heap_allocator(bool poison) {
  return std::make_unique<HeapAllocator>(poison);
}
std::unique_ptr<RawAllocator> make_dry_allocator() {
  return std::make_unique<DryAllocator>();
}

struct Accountant::Books {
  std::int64_t budget = kUnlimited;
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::vector<Holder> holders;

  int holder(const std::string& tag) {
    for (std::size_t i = 0; i < holders.size(); ++i)
      if (holders[i].tag == tag) return static_cast<int>(i);
    holders.push_back({tag, 0, 0});
    return static_cast<int>(holders.size()) - 1;
  }

  std::vector<Holder> by_size(std::int64_t Holder::*key) const {
    std::vector<Holder> sorted = holders;
    std::erase_if(sorted, [key](const Holder& h) { return h.*key == 0; });
    std::stable_sort(sorted.begin(), sorted.end(),
                     [key](const Holder& a, const Holder& b) { return a.*key > b.*key; });
    return sorted;
  }

  void mark_peak() {
    peak = current;
    for (Holder& h : holders) h.peak_bytes = h.bytes;
  }
};

Buffer::~Buffer() {
  if (owner_ != nullptr) owner_->release(*this);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(space_, other.space_);
  std::swap(holder_idx_, other.holder_idx_);
}

Accountant::Accountant(std::unique_ptr<RawAllocator> raw)
    : raw_(std::move(raw)), books_(std::make_unique<std::array<Books, kNumSpaces>>()) {}

Accountant::~Accountant() = default;

void Accountant::set_budget(Space space, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  (*books_)[static_cast<std::size_t>(space)].budget = bytes;
}

std::int64_t Accountant::budget(Space space) const {
  const std::lock_guard lock(mutex_);
  return (*books_)[static_cast<std::size_t>(space)].budget;
}

Buffer Accountant::allocate(Space space, std::int64_t bytes, const std::string& tag) {
  H3S_ASSERT(bytes >= 0);
  const std::int64_t rounded = round_up(std::max<std::int64_t>(bytes, 1));
  const std::lock_guard lock(mutex_);
  Books& books = (*books_)[static_cast<std::size_t>(space)];
  if (rounded > books.budget - books.current) {
    std::string largest;
    for (const Holder& h : books.by_size(&Holder::bytes)) {
      largest += fmt::format("{}{} {}", largest.empty() ? "" : ", ", h.tag, format_bytes(h.bytes));
      if (std::count(largest.begin(), largest.end(), ',') == 2) break;
    }
    fail(Status::kOverBudget, "[mem] {} budget {} cannot hold {} for {}: {} in use ({})", space_name(space),
         format_bytes(books.budget), format_bytes(rounded), tag, format_bytes(books.current),
         largest.empty() ? "nothing" : largest);
  }
  Buffer buffer;
  buffer.data_ = raw_->allocate(space, rounded);
  buffer.owner_ = this;
  buffer.bytes_ = bytes;
  buffer.space_ = space;
  buffer.holder_idx_ = books.holder(tag);
  books.current += rounded;
  books.holders[static_cast<std::size_t>(buffer.holder_idx_)].bytes += rounded;
  if (books.current > books.peak) books.mark_peak();
  return buffer;
}

void Accountant::release(Buffer& buffer) noexcept {
  const std::int64_t rounded = round_up(std::max<std::int64_t>(buffer.bytes_, 1));
  const std::lock_guard lock(mutex_);
  Books& books = (*books_)[static_cast<std::size_t>(buffer.space_)];
  raw_->release(buffer.space_, buffer.data_, rounded);
  books.current -= rounded;
  books.holders[static_cast<std::size_t>(buffer.holder_idx_)].bytes -= rounded;
}

SpaceReport Accountant::report(Space space) const {
  const std::lock_guard lock(mutex_);
  const Books& books = (*books_)[static_cast<std::size_t>(space)];
  return {books.budget, books.current, books.peak, books.by_size(&Holder::peak_bytes)};
}

std::int64_t Accountant::current_bytes(Space space) const {
  return report(space).current_bytes;
}
std::int64_t Accountant::peak_bytes(Space space) const {
  return report(space).peak_bytes;
}

void Accountant::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (Books& books : *books_) books.mark_peak();
}

}  // namespace h3s::mem
