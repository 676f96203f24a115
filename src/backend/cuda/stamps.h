// Timed points of the queues: CUDA events that keep their time, read when they have passed.
//
// CUDA gives the time between two events as a float, whose step is 0.25 ms after an hour. So times are
// counted from a base event that moves along with what is read, in double.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/backend.h"

namespace h3s::cuda {

class Stamps {
 public:
  Stamps() = default;
  ~Stamps();
  Stamps(const Stamps&) = delete;
  Stamps& operator=(const Stamps&) = delete;

  kernels::Stamp record(cudaStream_t stream);
  // Milliseconds since just before the first stamp; empty until it has passed. Never waits.
  std::optional<double> passed_ms(kernels::Stamp stamp);

 private:
  cudaEvent_t record_event(cudaStream_t stream);
  void move_base(cudaEvent_t event, double event_ms);

  cudaEvent_t base_ = nullptr;
  double base_ms_ = 0;
  std::uint64_t recorded_ = 0;
  std::unordered_map<std::uint64_t, cudaEvent_t> unread_;
  std::vector<cudaEvent_t> free_;
};

}  // namespace h3s::cuda
