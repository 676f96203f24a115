// The threads of a CPU backend, each with a fixed piece of scratch memory. Ops allocate nothing else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "backend/cpu/thread_pool.h"
#include "base/error.h"
#include "mem/accountant.h"

namespace h3s::cpu {

// Scratch of one thread, handed out from the front. 64-byte alignment: one cache line, one AVX-512 vector.
class Scratch {
 public:
  Scratch(std::byte* data, std::int64_t bytes) : data_(data), left_bytes_(bytes) {}

  static constexpr std::int64_t rounded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

  // Uninitialised room for `count` elements.
  template <typename T>
  T* take(std::int64_t count) {
    const std::int64_t bytes = rounded(count * static_cast<std::int64_t>(sizeof(T)));
    H3S_ASSERT(bytes <= left_bytes_);
    left_bytes_ -= bytes;
    return reinterpret_cast<T*>(std::exchange(data_, data_ + bytes));
  }

 private:
  std::byte* data_;
  std::int64_t left_bytes_;
};

// Each op asserts at compile time that its tiles fit. The largest user is the linear layer: a packed panel of
// W (384 KiB), a packed block of x (136 KiB) and an accumulator tile (768 KiB).
inline constexpr std::int64_t kScratchBytes = 1344 * 1024;

class Workers {
 public:
  Workers(int num_threads, mem::Accountant& accountant)
      : scratch_(accountant.allocate(mem::Space::kDevice, num_threads * kScratchBytes,
                                     "workspace of the CPU backend")),
        pool_(num_threads) {}

  int count() const { return pool_.num_threads(); }

  // fn(index, scratch) for each index in [0, count); see ThreadPool.
  template <typename Fn>
  void parallel_for(std::int64_t count, Fn&& fn) {
    pool_.parallel_for(count, [&](std::int64_t idx, int worker) {
      fn(idx, Scratch(scratch_.as<std::byte>() + worker * kScratchBytes, kScratchBytes));
    });
  }

  // fn(begin, end, scratch) over chunks of [0, rows): a few chunks a thread, to even out the load.
  template <typename Fn>
  void parallel_rows(std::int64_t rows, Fn&& fn) {
    const std::int64_t chunk = std::max<std::int64_t>(1, rows / (4 * count()));
    parallel_for((rows + chunk - 1) / chunk, [&](std::int64_t idx, Scratch scratch) {
      fn(idx * chunk, std::min(rows, (idx + 1) * chunk), scratch);
    });
  }

 private:
  mem::Buffer scratch_;
  ThreadPool pool_;
};

}  // namespace h3s::cpu
