// Memory of the three spaces, for the accountant. Allocations are few and happen outside forward passes: a
// release may wait for the device.
#include <cuda_runtime_api.h>

#include <cstring>
#include <mutex>
#include <set>

#include "backend/cuda/check.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/devices.h"
#include "base/bytes.h"
#include "base/error.h"

namespace h3s::cuda {
namespace {

constexpr int kPoison = 0xFF;

class Allocator final : public mem::RawAllocator {
 public:
  Allocator(int device, Warning warning, bool poison)
      : device_(device),
        warning_(std::move(warning)),
        poison_(poison),
        heap_(mem::make_heap_allocator(poison)) {
    require_device(device);
  }

  void* allocate(mem::Space space, std::int64_t bytes) override {
    use_device(device_);
    switch (space) {
      case mem::Space::kDevice:
        return allocate_device(bytes);
      case mem::Space::kPinned:
        return allocate_pinned(bytes);
      case mem::Space::kHost:
        return heap_->allocate(space, bytes);
    }
    fail(Status::kInternal, "[cuda] no such space");
  }

  // cudaFree and cudaFreeHost wait for the work that may still use the memory. After an error of the device
  // they fail, and there is nothing to be done about it here.
  void release(mem::Space space, void* data, std::int64_t bytes) noexcept override {
    cudaSetDevice(device_);
    switch (space) {
      case mem::Space::kDevice:
        cudaFree(data);
        break;
      case mem::Space::kPinned:
        cudaDeviceSynchronize();
        if (was_pinned(data))
          cudaFreeHost(data);
        else
          heap_->release(space, data, bytes);
        break;
      case mem::Space::kHost:
        heap_->release(space, data, bytes);
        break;
    }
    cudaGetLastError();
  }

 private:
  void* allocate_device(std::int64_t bytes) {
    void* data = nullptr;
    const cudaError_t status = H3S_CUDA_STATUS(cudaMalloc(&data, static_cast<std::size_t>(bytes)));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // an answer, not a failure to be found by a later check
      std::size_t free_bytes = 0, total_bytes = 0;
      cudaMemGetInfo(&free_bytes, &total_bytes);
      fail(Status::kOverBudget, "[mem] cuda:{} refused {}: {} of {} are free", device_, format_bytes(bytes),
           format_bytes(static_cast<std::int64_t>(free_bytes)),
           format_bytes(static_cast<std::int64_t>(total_bytes)));
    }
    if (status != cudaSuccess) throw_cuda_error(__FILE__, __LINE__, "cudaMalloc", status);
    if (poison_) {
      H3S_CUDA_CHECK(cudaMemset(data, kPoison, static_cast<std::size_t>(bytes)));
      H3S_CUDA_CHECK(cudaDeviceSynchronize());  // the queues' streams do not wait for the default one
    }
    return data;
  }

  void* allocate_pinned(std::int64_t bytes) {
    void* data = nullptr;
    if (H3S_CUDA_STATUS(cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocPortable)) !=
        cudaSuccess) {
      cudaGetLastError();
      warn(bytes);
      return heap_->allocate(mem::Space::kPinned, bytes);
    }
    if (poison_) std::memset(data, kPoison, static_cast<std::size_t>(bytes));
    const std::lock_guard lock(mutex_);
    pinned_.insert(data);
    return data;
  }

  bool was_pinned(void* data) {
    const std::lock_guard lock(mutex_);
    return pinned_.erase(data) == 1;
  }

  void warn(std::int64_t bytes) {
    if (warned_ || !warning_) return;
    warned_ = true;
    warning_(
        fmt::format("the system refused to pin {} of host memory; ordinary memory is used, and copies to and "
                    "from the GPU are "
                    "slower",
                    format_bytes(bytes)));
  }

  const int device_;
  const Warning warning_;
  const bool poison_;
  const std::unique_ptr<mem::RawAllocator> heap_;
  std::mutex mutex_;
  std::set<void*> pinned_;
  bool warned_ = false;
};

}  // namespace

std::unique_ptr<mem::RawAllocator> make_allocator(int device, Warning warning, bool poison) {
  return std::make_unique<Allocator>(device, std::move(warning), poison);
}

}  // namespace h3s::cuda
