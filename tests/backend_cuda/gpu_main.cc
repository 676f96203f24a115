// Runs the tests, or says why not: exit code 77 is a skip.
#include <gtest/gtest.h>

#include <cstdio>

#include "backend/cuda/cuda_backend.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto devices = h3s::cuda::devices();
  if (devices.empty()) {
    std::printf("skipped: %s\n", h3s::cuda::why_no_device().c_str());
    return 77;
  }
  std::printf("on %s, sm_%d, driver for CUDA %s\n", devices[0].name.c_str(), devices[0].sm,
              devices[0].driver.c_str());
  return RUN_ALL_TESTS();
}
