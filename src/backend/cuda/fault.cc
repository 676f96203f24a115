#include "backend/cuda/fault.h"

#include <atomic>
#include <mutex>
#include <string_view>

namespace h3s::cuda {
namespace {

struct Fault {
  std::string_view call;
  int skip = 0;
  cudaError_t error = cudaSuccess;
};

std::mutex mutex;
Fault fault;                     // guarded by mutex
std::atomic<bool> armed{false};  // set under mutex, read without

}  // namespace

void inject_fault(const char* call, int skip, cudaError_t error) {
  const std::lock_guard lock(mutex);
  fault = {call, skip, error};
  armed = true;
}

bool withdraw_fault() {
  return armed.exchange(false);
}

bool fault_due(const char* call) {
  if (!armed.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex);
  if (!armed || !std::string_view(call).starts_with(fault.call)) return false;
  return fault.skip-- == 0;
}

cudaError_t take_fault() {
  const std::lock_guard lock(mutex);
  armed = false;
  return fault.error;
}

}  // namespace h3s::cuda
