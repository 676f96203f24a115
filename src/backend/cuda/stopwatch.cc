#include "backend/cuda/stopwatch.h"

#include <vector>

#include "backend/cuda/check.h"

namespace h3s::cuda {
namespace {

class EventStopwatch final : public kernels::Stopwatch {
 public:
  explicit EventStopwatch(cudaStream_t stream) : stream_(stream) {}
  EventStopwatch(const EventStopwatch&) = delete;
  EventStopwatch& operator=(const EventStopwatch&) = delete;
  ~EventStopwatch() override {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  void mark() override {
    if (used_ == events_.size()) {
      cudaEvent_t event = nullptr;
      H3S_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync));
      events_.push_back(event);
    }
    H3S_CUDA_CHECK(cudaEventRecord(events_[used_], stream_));
    ++used_;
  }

  std::vector<double> read_ms() override {
    std::vector<double> times;
    for (std::size_t i = 0; i < used_; ++i) {
      float ms = 0;
      H3S_CUDA_CHECK(cudaEventSynchronize(events_[i]));
      H3S_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[0], events_[i]));
      times.push_back(static_cast<double>(ms));
    }
    used_ = 0;
    return times;
  }

 private:
  const cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;  // kept for the next marks
  std::size_t used_ = 0;
};

}  // namespace

std::unique_ptr<kernels::Stopwatch> make_stopwatch(cudaStream_t stream) {
  return std::make_unique<EventStopwatch>(stream);
}

}  // namespace h3s::cuda
