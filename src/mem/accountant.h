// The accounting allocator: every buffer of the engine comes from here, so that peaks are known and budgets
// hold.
//
// Bytes are counted as asked for, rounded up to kAlignment; a request that would pass the budget of its space
// throws Error(kOverBudget) naming the need, the budget and the largest holders, and changes nothing.
// Thread-safe. A Buffer may outlive no Accountant.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace h3s::mem {

// Where bytes live. On the CPU backend all three are ordinary memory, kept apart in the books.
enum class Space : int { kDevice = 0, kPinned = 1, kHost = 2 };
inline constexpr int kNumSpaces = 3;
inline constexpr std::int64_t kAlignment =
    256;  // a GPU allocation granule; also a multiple of every SIMD width
inline constexpr std::int64_t kUnlimited = INT64_MAX;

const char* space_name(Space space);

// What really hands out the bytes of a space; the CPU's is aligned host memory, a dry run's hands out
// nothing.
class RawAllocator {
 public:
  virtual ~RawAllocator() = default;
  virtual void* allocate(Space space,
                         std::int64_t bytes) = 0;  // never null but in a dry run; throws on failure
  virtual void release(Space space, void* data, std::int64_t bytes) noexcept = 0;
};

// Aligned heap memory. `poison`: fills every new buffer with 0xFF bytes (a NaN in each float type), so that a
// read before a write shows.
std::unique_ptr<RawAllocator> make_heap_allocator(bool poison = false);

// Hands out null pointers: only the books are kept.
std::unique_ptr<RawAllocator> make_dry_allocator();

class Accountant;

// Owns bytes of one space; frees them on destruction. Movable, not copyable.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::int64_t bytes() const { return bytes_; }
  Space space() const { return space_; }
  void swap(Buffer& other) noexcept;

 private:
  friend class Accountant;
  Accountant* owner_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;  // as asked for
  Space space_ = Space::kHost;
  int holder_idx_ = -1;
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
  std::vector<Holder> holders;  // largest peak first
};

class Accountant {
 public:
  explicit Accountant(std::unique_ptr<RawAllocator> raw);
  ~Accountant();
  Accountant(const Accountant&) = delete;
  Accountant& operator=(const Accountant&) = delete;

  void set_budget(Space space, std::int64_t bytes);
  std::int64_t budget(Space space) const;

  // `tag` names the holder in reports and errors, for instance "K,V of the head group".
  Buffer allocate(Space space, std::int64_t bytes, const std::string& tag);

  SpaceReport report(Space space) const;
  std::int64_t current_bytes(Space space) const;
  std::int64_t peak_bytes(Space space) const;

  // Starts a new peak at what is held now.
  void reset_peaks();

 private:
  friend class Buffer;
  struct Books;
  void release(Buffer& buffer) noexcept;
  std::unique_ptr<RawAllocator> raw_;
  mutable std::mutex mutex_;
  std::unique_ptr<std::array<Books, kNumSpaces>> books_;
};

}  // namespace h3s::mem
