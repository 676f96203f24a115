// kernels::Stopwatch by CUDA events with timing, on one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/backend.h"

namespace h3s::cuda {

// On a stream of the current device.
std::unique_ptr<kernels::Stopwatch> make_stopwatch(cudaStream_t stream);

}  // namespace h3s::cuda
