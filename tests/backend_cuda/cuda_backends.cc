// The GPU's side of ops/op_test.h: the tests of the CPU ops, linked with this file, run on the first GPU.
//
// H3S_TEST_REFERENCE_KERNELS: only the reference kernels, for ops whose fast kernels sum in an order of their
// own. H3S_TEST_ALIGNED: operands always on 256 bytes, for ops that ask for alignment.
#include <memory>

#include "backend/cuda/cuda_backend.h"
#include "backend_cuda/mirrored_backend.h"
#include "ops/op_test.h"

namespace h3s::test {
namespace {

struct Gpu {
  Gpu() : accountant(cuda::make_allocator(0, {}, /*poison=*/true)) {
    for (const cuda::Kernels kernels : {cuda::Kernels::kReference, cuda::Kernels::kFast}) {
#ifdef H3S_TEST_REFERENCE_KERNELS
      if (kernels == cuda::Kernels::kFast) continue;
#endif
      engines.push_back(cuda::make_backend(0, accountant, kernels));
    }
    for (const auto& engine : engines)
      for (const std::int64_t shift : {0, 1}) {
#ifdef H3S_TEST_ALIGNED
        if (shift != 0) continue;
#endif
        mirrored.push_back(std::make_unique<MirroredBackend>(*engine, accountant, shift));
      }
  }

  mem::Accountant accountant;
  std::vector<std::unique_ptr<kernels::Backend>> engines;
  std::vector<std::unique_ptr<MirroredBackend>> mirrored;
};

Gpu& gpu() {
  static Gpu instance;
  return instance;
}

}  // namespace

void for_each_backend(const std::function<void(kernels::Backend&)>& fn) {
  for (const auto& backend : gpu().mirrored) fn(*backend);
}

kernels::Backend& best_backend() {
  return *gpu().mirrored.front();
}

}  // namespace h3s::test
