#include "backend/cuda/queues.h"

#include <algorithm>

#include "backend/cuda/check.h"
#include "base/error.h"

namespace h3s::cuda {

using kernels::Event;
using kernels::Queue;

Queues::Queues(std::optional<void*> compute) {
  Line* callers = compute ? &line(Queue::kCompute) : nullptr;
  if (callers != nullptr) callers->stream = static_cast<cudaStream_t>(*compute);
  try {
    for (Line& l : lines_) {
      if (&l == callers) continue;
      H3S_CUDA_CHECK(cudaStreamCreateWithFlags(&l.stream, cudaStreamNonBlocking));
      l.owned = true;
    }
  } catch (...) {
    destroy_streams();
    throw;
  }
}

void Queues::destroy_streams() noexcept {
  for (Line& l : lines_)
    if (l.owned) cudaStreamDestroy(l.stream);
}

Queues::~Queues() {
  sync_all();
  for (Line& line : lines_)
    for (const Pending& pending : line.pending) cudaEventDestroy(pending.event);
  destroy_streams();
  for (const cudaEvent_t event : free_) cudaEventDestroy(event);
  cudaGetLastError();
}

Queue Queues::queue_of(Event event) {
  return static_cast<Queue>(event.id % kernels::kNumQueues);
}

cudaEvent_t Queues::take() {
  if (!free_.empty()) {
    const cudaEvent_t event = free_.back();
    free_.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  // Blocking: a host that waits minutes for a forward pass should not spin.
  H3S_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
  return event;
}

void Queues::mark_passed(Line& line, std::uint64_t number) {
  line.passed = std::max(line.passed, number);
  while (!line.pending.empty() && line.pending.front().number <= number) {
    free_.push_back(line.pending.front().event);
    line.pending.pop_front();
  }
}

// Takes back the events at the front that have passed.
void Queues::collect(Line& line) {
  while (!line.pending.empty()) {
    const cudaError_t status = H3S_CUDA_STATUS(cudaEventQuery(line.pending.front().event));
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // an answer, not a failure to be found by a later check
      return;
    }
    H3S_CUDA_CHECK(status);
    mark_passed(line, line.pending.front().number);
  }
}

Event Queues::record(Queue queue) {
  Line& l = line(queue);
  collect(l);
  const cudaEvent_t event = take();
  l.pending.push_back({++l.recorded, event});
  H3S_CUDA_CHECK(cudaEventRecord(event, l.stream));
  return {l.recorded * kernels::kNumQueues + static_cast<std::uint64_t>(queue)};
}

cudaEvent_t Queues::find(Event event) const {
  const Line& l = line(queue_of(event));
  const std::uint64_t number = number_of(event);
  if (number <= l.passed) return nullptr;
  H3S_ASSERT(number <= l.recorded && !l.pending.empty());
  return l.pending[number - l.pending.front().number].event;
}

void Queues::wait(Queue queue, Event event) {
  if (event.id == 0 || queue_of(event) == queue) return;  // a queue is in order with itself
  if (const cudaEvent_t e = find(event)) H3S_CUDA_CHECK(cudaStreamWaitEvent(line(queue).stream, e));
}

void Queues::sync(Event event) {
  if (event.id == 0) return;
  const cudaEvent_t e = find(event);
  if (e == nullptr) return;
  H3S_CUDA_CHECK(cudaEventSynchronize(e));
  mark_passed(line(queue_of(event)), number_of(event));
}

void Queues::sync_all() noexcept {
  for (Line& l : lines_) cudaStreamSynchronize(l.stream);
}

}  // namespace h3s::cuda
