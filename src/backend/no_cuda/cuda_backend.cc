// The functions of backend/cuda/cuda_backend.h in a build without CUDA.
#include "backend/cuda/cuda_backend.h"

#include "base/error.h"

namespace h3s::cuda {
namespace {

[[noreturn]] void refuse() {
  fail(Status::kUnsupported, "[cuda] this program was built without CUDA (H3S_CUDA=OFF)");
}

}  // namespace

std::vector<DeviceInfo> devices() {
  return {};
}
std::int64_t free_bytes(int) {
  refuse();
}
std::optional<std::int64_t> context_bytes(int) {
  refuse();
}
DeviceState device_state(int) {
  refuse();
}
std::string why_no_device() {
  return "this program was built without CUDA";
}
std::unique_ptr<mem::RawAllocator> make_allocator(int, Warning, bool) {
  refuse();
}
std::unique_ptr<kernels::Backend> make_backend(int, mem::Accountant&, Kernels, CallerStream) {
  refuse();
}
std::int64_t workspace_bytes() {
  return 0;
}

}  // namespace h3s::cuda
