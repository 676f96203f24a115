// What surrounds the ops: the thread pool, the workspace and its account, copies, events.
#include "backend/cpu/cpu_backend.h"

#include <atomic>
#include <cstdio>
#include <set>
#include <stdexcept>

#include "backend/cpu/thread_pool.h"
#include "base/error.h"
#include "ops/op_test.h"

namespace h3s::test {
namespace {

TEST(ThreadPool, EveryIndexOnce) {
  for (const int num_threads : {1, 2, 3, 5}) {
    cpu::ThreadPool pool(num_threads);
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
      pool.parallel_for(count, [&](std::int64_t idx, int worker) {
        ++calls[static_cast<std::size_t>(idx)];
        ASSERT_LT(worker, num_threads);
      });
      for (const auto& n : calls) ASSERT_EQ(n, 1);
    }
  }
}

TEST(ThreadPool, FirstExceptionReachesTheCallerAndThePoolGoesOn) {
  cpu::ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.parallel_for(100,
                                   [](std::int64_t idx, int) {
                                     if (idx % 10 == 3) throw std::runtime_error("stop");
                                   }),
                 std::runtime_error);
    std::atomic<int> calls = 0;
    pool.parallel_for(50, [&](std::int64_t, int) { ++calls; });
    EXPECT_EQ(calls, 50);
  }
}

// The other tests rely on this loop: it must reach each instruction set once per thread count.
TEST(CpuBackend, EveryInstructionSetIsTested) {
  std::set<std::string> names;
  int num_calls = 0;
  for_each_backend([&](kernels::Backend& backend) {
    ++num_calls;
    names.insert(backend.name());
  });
  EXPECT_GE(num_calls, 4);
  EXPECT_EQ(static_cast<int>(names.size()), num_calls);
  for (const std::string& name : names) std::printf("  %s\n", name.c_str());
}

TEST(CpuBackend, WorkspaceIsOnTheBooks) {
  mem::Accountant accountant(mem::make_heap_allocator());
  {
    const auto backend = cpu::make_backend(3, accountant);
    EXPECT_EQ(accountant.current_bytes(mem::Space::kDevice), cpu::workspace_bytes(3));
    EXPECT_TRUE(backend->device_is_host());
    EXPECT_NE(backend->name().find("3 threads"), std::string::npos) << backend->name();
  }
  EXPECT_EQ(accountant.current_bytes(mem::Space::kDevice), 0);
}

TEST(CpuBackend, WorkspaceOverBudgetIsRefused) {
  mem::Accountant accountant(mem::make_heap_allocator());
  accountant.set_budget(mem::Space::kDevice, cpu::workspace_bytes(2) - 1);
  try {
    cpu::make_backend(2, accountant);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::kOverBudget);
  }
}

TEST(CpuBackend, NoRowsIsNoWork) {
  kernels::Backend& backend = best_backend();
  kernels::LinearArgs linear;
  linear.n = linear.k = linear.x_stride = linear.y_stride = 8;
  backend.linear(linear);
  kernels::LinearInt8Args linear_int8;
  linear_int8.n = linear_int8.k = linear_int8.y_stride = 8;
  backend.linear_int8(linear_int8);
  kernels::AttentionArgs attention;
  attention.heads = 2, attention.kv_tokens = 5;
  backend.attention(attention);
  backend.rms_norm({});
  backend.quantize_rows({});
}

TEST(CpuBackend, CopyMovesRowsOnly) {
  const std::vector<std::int8_t> src = random_codes(4 * 10, 1);
  Guarded<std::int8_t> dst(4 * 7);
  best_backend().copy({dst.data(), 7, src.data(), 10, 5, 4}, kernels::Queue::kUpload);
  for (std::int64_t r = 0; r < 4; ++r)
    for (std::int64_t c = 0; c < 7; ++c)
      EXPECT_EQ(dst[r * 7 + c], c < 5 ? src[static_cast<std::size_t>(r * 10 + c)] : -1);
  EXPECT_TRUE(dst.guards_intact());
}

TEST(CpuBackend, EventsAreAlwaysPassed) {
  kernels::Backend& backend = best_backend();
  const kernels::Event event = backend.record(kernels::Queue::kCompute);
  backend.wait(kernels::Queue::kUpload, event);
  backend.sync(event);
  EXPECT_EQ(event.id, 0u);
}

}  // namespace
}  // namespace h3s::test
