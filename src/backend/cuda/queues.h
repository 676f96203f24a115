// The three queues as streams, and events between them.
//
// An event is a queue and a number that counts up along it. A queue runs in order, so what has passed is
// known by one number a queue, and a CUDA event returns to the pool as soon as it has passed, while ids stay
// valid for ever. The pool grows to the events in flight, which the driver's launch queue bounds.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "kernels/backend.h"

namespace h3s::cuda {

class Queues {
 public:
  // On the current device. `compute`: the caller's stream to be the compute queue, which must outlive this.
  explicit Queues(std::optional<void*> compute = {});
  ~Queues();
  Queues(const Queues&) = delete;
  Queues& operator=(const Queues&) = delete;

  cudaStream_t stream(kernels::Queue queue) const { return line(queue).stream; }
  kernels::Event record(kernels::Queue queue);
  void wait(kernels::Queue queue, kernels::Event event);
  void sync(kernels::Event event);
  void sync_all() noexcept;

 private:
  struct Pending {
    std::uint64_t number;
    cudaEvent_t event;
  };
  struct Line {
    cudaStream_t stream = nullptr;
    bool owned = false;
    std::uint64_t recorded = 0, passed = 0;
    std::deque<Pending> pending;  // recorded and not known to have passed, numbers consecutive
  };

  const Line& line(kernels::Queue queue) const { return lines_[static_cast<std::size_t>(queue)]; }
  Line& line(kernels::Queue queue) { return lines_[static_cast<std::size_t>(queue)]; }
  static kernels::Queue queue_of(kernels::Event event);
  static std::uint64_t number_of(kernels::Event event) { return event.id / kernels::kNumQueues; }
  cudaEvent_t find(kernels::Event event) const;  // null: passed
  cudaEvent_t take();
  void destroy_streams() noexcept;
  void mark_passed(Line& line, std::uint64_t number);
  void collect(Line& line);

  std::array<Line, kernels::kNumQueues> lines_;
  std::vector<cudaEvent_t> free_;
};

}  // namespace h3s::cuda
