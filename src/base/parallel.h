// A range in slices, one a thread. For loading and decoding: work whose result does not depend on the slices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <future>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace h3s {

// fn(begin, end) for consecutive slices of [0, count), of `least` or more each, beside each other. The caller
// takes the last one. Rethrows a slice's exception when all have ended. Throws Error(kIo) when the system has
// no thread for a slice.
template <typename Fn>
void in_slices(std::int64_t count, std::int64_t least, int threads, const Fn& fn) {
  const std::int64_t slices = std::clamp<std::int64_t>(count / std::max<std::int64_t>(1, least), 1, threads);
  std::vector<std::future<void>> others;  // their destructors wait
  for (std::int64_t i = 0; i + 1 < slices; ++i) try {
      others.push_back(std::async(
          std::launch::async, [&fn, i, slices, count] { fn(count * i / slices, count * (i + 1) / slices); }));
    } catch (const std::system_error& e) {
      fail(Status::kIo, "the system refused thread {} of {}: {}; use fewer with --threads", i + 2, slices,
           e.code().message());
    }
  fn(count * (slices - 1) / slices, count);
  for (std::future<void>& other : others) other.get();
}

}  // namespace h3s
