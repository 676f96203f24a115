// The backends of op_test.h on the CPU: every instruction set and several thread counts.
#include <map>
#include <memory>

#include "simd/targets.h"

#include "hwy/highway.h"
#include "ops/op_test.h"

namespace h3s::test {
namespace {

kernels::Backend& backend_with_threads(int num_threads) {
  static mem::Accountant accountant(mem::make_heap_allocator(/*poison=*/true));
  static std::map<int, std::unique_ptr<kernels::Backend>> backends;
  auto& backend = backends[num_threads];
  if (!backend) backend = cpu::make_backend(num_threads, accountant);
  return *backend;
}

void use_targets(std::int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

void for_each_backend(const std::function<void(kernels::Backend&)>& fn) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    use_targets(target);
    for (const int num_threads : {1, 2, 3, 5}) fn(backend_with_threads(num_threads));
    use_targets(0);
  }
}

kernels::Backend& best_backend() {
  return backend_with_threads(2);
}

}  // namespace h3s::test
