#include "backend/cuda/stamps.h"

#include "backend/cuda/check.h"
#include "base/error.h"

namespace h3s::cuda {
namespace {

// A float holds this many milliseconds to 0.06 us, finer than the 0.5 us of an event.
constexpr float kMostSinceBaseMs = 1000;

}  // namespace

Stamps::~Stamps() {
  for (const auto& [id, event] : unread_) cudaEventDestroy(event);
  for (const cudaEvent_t event : free_) cudaEventDestroy(event);
  if (base_ != nullptr) cudaEventDestroy(base_);
  cudaGetLastError();
}

cudaEvent_t Stamps::record_event(cudaStream_t stream) {
  if (free_.empty()) {
    cudaEvent_t created = nullptr;
    H3S_CUDA_CHECK(cudaEventCreateWithFlags(&created, cudaEventDefault));
    free_.push_back(created);
  }
  const cudaEvent_t event = free_.back();
  H3S_CUDA_CHECK(cudaEventRecord(event, stream));
  free_.pop_back();
  return event;
}

kernels::Stamp Stamps::record(cudaStream_t stream) {
  if (base_ == nullptr) base_ = record_event(stream);
  unread_.emplace(recorded_ + 1, record_event(stream));
  return {++recorded_};
}

std::optional<double> Stamps::passed_ms(kernels::Stamp stamp) {
  const auto found = unread_.find(stamp.id);
  H3S_ASSERT(found != unread_.end());
  float since_base = 0;
  const cudaError_t status = cudaEventElapsedTime(&since_base, base_, found->second);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // an answer, not a failure to be found by a later check
    return std::nullopt;
  }
  H3S_CUDA_CHECK(status);
  const cudaEvent_t event = found->second;
  unread_.erase(found);
  const double passed = base_ms_ + static_cast<double>(since_base);
  if (since_base > kMostSinceBaseMs)
    move_base(event, passed);
  else
    free_.push_back(event);
  return passed;
}

void Stamps::move_base(cudaEvent_t event, double event_ms) {
  free_.push_back(base_);
  base_ = event;
  base_ms_ = event_ms;
}

}  // namespace h3s::cuda
