// The CUDA backend: every op on one NVIDIA GPU, with copies beside compute.
//
// This header needs no CUDA; a build without CUDA has the same functions (backend/no_cuda), which throw
// kUnsupported "built without CUDA" and list no devices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "mem/accountant.h"

namespace h3s::cuda {

struct DeviceInfo {
  int index = 0;
  std::string name;  // "NVIDIA H200"
  int sm = 0;        // compute capability times 10: 90
  std::int64_t total_bytes = 0;
  int multiprocessors = 0;
  std::string driver;  // the CUDA version the driver supports: "13.0"
};

// The GPUs of this machine in CUDA's order; empty without a usable driver. Thread-safe.
std::vector<DeviceInfo> devices();

// Device memory that is free now, this process's context included in what is not. Makes the context. Throws
// as make_allocator.
std::int64_t free_bytes(int device);

// Device memory that this process's context took when it was made, which happens here at the latest. Empty
// where something else had made it before, or where the driver's management library does not say. Throws
// kOverBudget when the card has not the memory for it.
std::optional<std::int64_t> context_bytes(int device);

// A GPU as the driver sees it; empty where the driver's management library does not say.
struct DeviceState {
  std::int64_t free_bytes = 0, total_bytes = 0;  // of every process
  std::optional<std::int64_t> clock_mhz;         // of the multiprocessors
  std::optional<bool> throttled;                 // held back for heat, or by the power supply
};

// Does not wait for the device. Throws as make_allocator.
DeviceState device_state(int device);

// Why devices() is empty, in words for a user; empty when it is not.
std::string why_no_device();

// Called with one line for the user.
using Warning = std::function<void(const std::string&)>;

// Device memory by cudaMalloc, pinned memory by cudaHostAlloc, host memory from the heap. When ordinary
// memory has to serve as pinned (RawAllocator::allocate_unpinned), `warning` is called once. `poison` fills
// every new buffer with 0xFF bytes. Throws Error(kUnsupported) when there is no such device; allocations
// throw kOverBudget when the memory is not there or cannot be pinned.
std::unique_ptr<mem::RawAllocator> make_allocator(int device, Warning warning = {}, bool poison = false);

enum class Kernels {
  kFast,       // the best kernel of the device for each op
  kPortable,   // as kFast, with the tensor-core kernels that every card runs (mma.sync)
  kReference,  // linears, quantisers and attention by the plain kernels that have the bits of the CPU
               // definitions; slow
};

// A cudaStream_t of the caller's that the compute queue is to be; it must outlive the backend. Empty: one of
// the backend's own. Null is a stream too, CUDA's default one.
using CallerStream = std::optional<void*>;

// A backend on GPU `device`. Its workspace (workspace_bytes()) is allocated here from Space::kDevice of
// `accountant`, which must outlive it, as must every buffer that an op still uses; ops allocate nothing.
// Calls enqueue and return; only sync() waits. One thread at a time. Throws kUnsupported when there is no
// such device or this build has no code for it.
std::unique_ptr<kernels::Backend> make_backend(int device, mem::Accountant& accountant,
                                               Kernels kernels = Kernels::kFast, CallerStream compute = {});

// What make_backend allocates.
std::int64_t workspace_bytes();

}  // namespace h3s::cuda
