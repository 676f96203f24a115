// The first context of a process: refused when the card has not the memory for it, measured when it has.
#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/fault.h"
#include "base/bytes.h"
#include "base/error.h"

namespace h3s::test {
namespace {

// One test: a process has one first time.
TEST(CudaContext, IsRefusedWithoutMemoryForItAndMeasured) {
  cuda::inject_fault("cudaSetDevice", 0, cudaErrorMemoryAllocation);
  try {
    cuda::free_bytes(0);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), Status::kOverBudget);
    EXPECT_NE(std::string(error.what()).find("[cuda] cuda:0"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("has not the memory for a context"), std::string::npos);
  }
  const std::optional<std::int64_t> bytes = cuda::context_bytes(0);
  if (!bytes) GTEST_SKIP() << "the driver's management library does not say what is in use";
  std::printf("a context takes %s\n", format_bytes(*bytes).c_str());
  EXPECT_EQ(cuda::context_bytes(0), bytes) << "measured once";
  const cuda::DeviceState state = cuda::device_state(0);
  EXPECT_LE(*bytes, state.total_bytes - state.free_bytes);
}

}  // namespace
}  // namespace h3s::test
