// Whatever CUDA call fails in a run, the user reads one line with the op, its shape and the call, nothing is
// left behind, and the next run in the same process, on the same backend, has the bits of the first.
#include <gtest/gtest.h>

#include <optional>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/fault.h"
#include "base/error.h"
#include "exec/engine_fixture.h"
#include "kernels/attention.h"

namespace h3s::test {
namespace {

using mem::Space;

struct Result {
  std::vector<float> video, audio;
  bool operator==(const Result&) const = default;
};

class CudaErrors : public testing::Test {
 protected:
  CudaErrors() : file_(small_spec(), /*int8=*/true), job_(small_spec(), ragged_job()) {}

  // Flat: every queue, the weight ring and pinned memory take part.
  Result run() {
    const exec::Dials dials{.schedule = exec::Schedule::kFlat,
                            .head_group = 2,
                            .q_chunk = 64,
                            .kv_chunk = 64,
                            .mlp_chunk = 64,
                            .head_chunk = 64};
    const auto warn = [this](const std::string& text) { warnings_.push_back(text); };
    exec::Session session(*backend_, accountant_, file_.get(), job_.layout, {.dials = dials, .warn = warn});
    session.set_conditioning(job_.conditioning());
    Result result{std::vector<float>(job_.inputs.video.size()), std::vector<float>(job_.inputs.audio.size())};
    session.forward(job_.inputs.video.data(), job_.inputs.audio.data(), 0.5f, result.video.data(),
                    result.audio.data());
    return result;
  }

  // The error of a run in which the call after `skip` of its kind fails; empty: the run did not fail.
  std::string error_of_run(const char* call, int skip, cudaError_t error) {
    cuda::inject_fault(call, skip, error);
    std::string text;
    try {
      run();
    } catch (const Error& e) {
      text = e.what();
    }
    EXPECT_FALSE(cuda::withdraw_fault()) << call << ": fewer than " << skip + 1 << " calls in a run";
    return text;
  }

  void expect_recovery(const char* call) {
    EXPECT_EQ(accountant_.current_bytes(Space::kDevice), cuda::workspace_bytes()) << call;
    EXPECT_EQ(accountant_.current_bytes(Space::kPinned), 0) << call;
    EXPECT_TRUE(run() == first_) << "after a failed " << call;
  }

  std::vector<std::string> warnings_;
  mem::Accountant accountant_{cuda::make_allocator(
      0, [this](const std::string& text) { warnings_.push_back(text); }, true)};
  std::unique_ptr<kernels::Backend> backend_ = cuda::make_backend(0, accountant_);
  CheckpointFile file_;
  SmallJob job_;
  Result first_ = run();
};

TEST_F(CudaErrors, OneLineNamesOpShapeAndCall) {
  struct Failure {
    const char* call;
    cudaError_t error;
    bool names_op_enqueued_last;
    int second = 5;  // calls of the kind that pass before the second failure
  };
  // The host may wait once only, for the outputs: an event that has passed by itself needs no
  // cudaEventSynchronize, and the waits of the end, which drain the queues, have no one to tell.
  for (const Failure& f : {Failure{"cudaGetLastError", cudaErrorLaunchOutOfResources, false},
                           Failure{"cudaLaunchKernelEx", cudaErrorInvalidConfiguration, false},
                           Failure{"cudaFuncSetAttribute", cudaErrorInvalidValue, false},
                           Failure{"cudaMemcpyAsync", cudaErrorInvalidValue, false},
                           Failure{"cudaStreamWaitEvent", cudaErrorUnknown, true},
                           Failure{"cudaEventRecord", cudaErrorLaunchFailure, true},
                           Failure{"cudaEventQuery", cudaErrorLaunchTimeout, true},
                           Failure{"cudaEventSynchronize", cudaErrorIllegalAddress, true, 0}})
    for (const int skip : {0, f.second}) {
      const std::string text = error_of_run(f.call, skip, f.error);
      const bool names_call =
          text.find(f.call) != std::string::npos || f.call == std::string("cudaEventQuery");
      EXPECT_TRUE(names_call) << f.call << ": " << text;
      EXPECT_NE(text.find(cudaGetErrorString(f.error)), std::string::npos) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      EXPECT_EQ(text.find("the last op enqueued was [") != std::string::npos, f.names_op_enqueued_last)
          << text;
      EXPECT_EQ(text.starts_with('['), !f.names_op_enqueued_last) << text;
      EXPECT_NE(text.find(" x "), std::string::npos) << "no shape: " << text;
      expect_recovery(f.call);
    }
}

TEST_F(CudaErrors, MemoryThatIsNotThereIsARefusal) {
  const std::string text = error_of_run("cudaMalloc", 0, cudaErrorMemoryAllocation);
  for (const char* part : {"[mem]", "cuda:0 refused", " are free"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  expect_recovery("cudaMalloc");
}

// The run goes on with one slot for weights, with one warning and the same bits.
TEST_F(CudaErrors, RefusedPinningCostsSpeedOnly) {
  cuda::inject_fault("cudaHostAlloc", 0, cudaErrorMemoryAllocation);
  EXPECT_TRUE(run() == first_);
  EXPECT_FALSE(cuda::withdraw_fault());
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("refused to pin"), std::string::npos) << warnings_[0];
  expect_recovery("cudaHostAlloc");
}

// Without the hook: more heads than a grid is tall, which ops/ lets nobody ask for. The launch is refused, so
// that no memory is touched.
TEST_F(CudaErrors, ALaunchThatCudaRefuses) {
  const auto reference = cuda::make_backend(0, accountant_, cuda::Kernels::kReference);
  kernels::AttentionArgs args;
  args.dtype = DType::kF32, args.heads = 70'000, args.q_tokens = args.kv_tokens = 1;
  std::string text;
  try {
    reference->attention(args);
  } catch (const Error& e) {
    text = e.what();
  }
  for (const char* part : {"[attention] 70000 x 1 x 1: ", "attention.cu", "cudaGetLastError",
                           "failed: invalid "})  // "argument" or "configuration", as the driver sees it
    EXPECT_NE(text.find(part), std::string::npos) << text;
  expect_recovery("launch");
}

}  // namespace
}  // namespace h3s::test
