// What every part of the executor shares: the backend, and where its buffers come from.
#pragma once

#include "base/error.h"
#include "exec/stage_limits.h"
#include "kernels/backend.h"
#include "mem/memory.h"

namespace h3s::exec {

struct Context {
  kernels::Backend& backend;
  mem::Memory& accountant;        // the session's arena; in a dry run, books that hold nothing
  StageLimits* limits = nullptr;  // null: nothing is tried again

  // fn(first, count) over pieces of [0, rows), one unless memory was refused: see StageLimits::run().
  template <typename Fn>
  void in_pieces(Stage stage, std::int64_t rows, Fn&& fn) const {
    if (limits == nullptr) return fn(std::int64_t{0}, rows);
    limits->run(stage, rows, fn);
  }
};

// Waits, on destruction, for everything its backend was asked to do. The last member of whatever owns buffers
// that ops and copies use, so that it goes first: also when an exception leaves work half queued.
class Drain {
 public:
  explicit Drain(Context context) : backend_(context.backend) {}
  ~Drain() {
    for (int i = 0; i < kernels::kNumQueues; ++i) try {
        backend_.sync(backend_.record(static_cast<kernels::Queue>(i)));
      } catch (...) {  // a device that failed has nothing left running
      }
  }
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

 private:
  kernels::Backend& backend_;
};

inline std::int64_t element_bytes(DType dtype) {
  return static_cast<std::int64_t>(dtype_size(dtype));
}

}  // namespace h3s::exec
