// What the driver says of a GPU: memory through CUDA, clocks through its management library.
#include <cuda_runtime_api.h>

#include "backend/cuda/check.h"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/management_library.h"

namespace h3s::cuda {

DeviceState device_state(int device) {
  make_context(device);
  std::size_t available = 0, total = 0;
  H3S_CUDA_CHECK(cudaMemGetInfo(&available, &total));
  DeviceState state{static_cast<std::int64_t>(available), static_cast<std::int64_t>(total)};
  ManagementLibrary::instance().read_clocks(device, state);
  return state;
}

}  // namespace h3s::cuda
