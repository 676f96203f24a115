// Which backend computes: the only place that knows all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/cuda/cuda_backend.h"
#include "kernels/backend.h"
#include "mem/accountant.h"

namespace h3s::backend {

// Where to compute.
struct DeviceChoice {
  int cuda = -1;                             // a GPU's number; -1: the CPU
  int threads = 0;                           // of the CPU; 0: as many as the machine has
  bool reference = false;                    // on a GPU, the plain kernels with the CPU's bits
  bool portable = false;                     // on a GPU, the tensor-core kernels that every card runs
  std::optional<void*> compute_stream = {};  // on a GPU, the caller's cudaStream_t; see cuda::CallerStream
  bool on_cpu() const { return cuda < 0; }
};

// "cpu"; "cuda:N"; "auto": the first GPU, or the CPU where this build or machine has none. Throws
// Error(kInvalidArgument) on other text, kUnsupported for a GPU that is not there, saying why.
DeviceChoice parse_device(const std::string& text, int threads);

// "cpu", or "cuda:0 (NVIDIA H200, sm_90)".
std::string describe(const DeviceChoice& device);

// What beside the model decides a result's bits on this device: "cpu", "cuda sm_90". Results of equal names
// are equal.
std::string kernels_name(const DeviceChoice& device);

// What GPU that is.
using Gpu = cuda::DeviceInfo;
Gpu gpu(const DeviceChoice& device);  // which must not be the CPU

// Called with one line for the user.
using Warning = std::function<void(const std::string&)>;

std::unique_ptr<mem::RawAllocator> make_allocator(const DeviceChoice& device, Warning warning = {},
                                                  bool poison = false);
std::unique_ptr<kernels::Backend> make_backend(const DeviceChoice& device, mem::Accountant& accountant);

// What make_backend will allocate in Space::kDevice.
std::int64_t workspace_bytes(const DeviceChoice& device);
bool device_is_host(const DeviceChoice& device);

// The GPU as its driver sees it now, without waiting for it; empty on the CPU.
using DeviceState = cuda::DeviceState;
std::optional<DeviceState> device_state(const DeviceChoice& device);

// Device memory of this process's driver context, measured when it was made; empty on the CPU and where that
// could not be seen.
std::optional<std::int64_t> context_bytes(const DeviceChoice& device);

// What comes to a context later: kernels loaded at their first launch, and arenas rounded up to the driver's
// granules of 2 MiB. 12 MiB and two granules were seen on an H200.
inline constexpr std::int64_t kLoadedLaterBytes = std::int64_t{32} << 20;

// Bytes a run may plan with on the device when no budget is given: what is free there, less a margin for the
// driver; unlimited on the CPU.
std::int64_t default_device_budget(const DeviceChoice& device);

}  // namespace h3s::backend
