// A device that refuses memory to an op in the middle of a run: every op of every stage, block and chunk in
// turn. The stage goes on in smaller pieces with the same bits, each residual added once; where there is
// nothing smaller, one error, and everything is given back.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "backend/select.h"
#include "base/error.h"
#include "exec/deferred_backend.h"
#include "exec/engine_fixture.h"
#include "exec/stage_limits.h"
#include "kernels/forwarding_backend.h"

namespace h3s::test {
namespace {

#ifdef H3S_TEST_CUDA
const backend::DeviceChoice kDevice{.cuda = 0};
#else
const backend::DeviceChoice kDevice{.threads = 2};
#endif

using exec::Dials;
using exec::Schedule;
using exec::StageLimits;
using kernels::OpCall;

// Refuses the ops that `refuses` picks; counts all.
class RefusingBackend final : public kernels::ForwardingBackend {
 public:
  using Refuses = std::function<bool(const OpCall&, std::int64_t number)>;
  RefusingBackend(kernels::Backend& inner, Refuses refuses)
      : ForwardingBackend(inner), refuses_(std::move(refuses)) {}
  std::int64_t num_ops() const { return num_ops_; }
  const std::optional<OpCall>& refused() const { return refused_; }  // the last one

 protected:
  void op(const OpCall& call, kernels::RunOp run) override {
    if (refuses_(call, num_ops_++)) {
      refused_ = call;
      fail(Status::kOverBudget, "[{}] no memory", call.name);
    }
    run();
  }

 private:
  Refuses refuses_;
  std::int64_t num_ops_ = 0;
  std::optional<OpCall> refused_;
};

struct Outcome {
  std::vector<float> video, audio;
  std::string error;  // empty: none
  std::vector<std::string> warnings;
  Dials dials, effective;
  std::int64_t num_ops = 0;
  std::optional<OpCall> refused;
  bool same_bits(const Outcome& other) const { return video == other.video && audio == other.audio; }
};

bool never(const OpCall&, std::int64_t) {
  return false;
}

class RefusedLaunch : public testing::TestWithParam<Dials> {
 protected:
  // A session of one job from its construction to its end. `deferred`: on a device that runs nothing until it
  // must.
  Outcome run(const Dials& dials, RefusingBackend::Refuses refuses, bool deferred = false,
              int num_forwards = 1) {
    Outcome outcome;
    DeferredBackend device(*engine_, 11);
    RefusingBackend backend(deferred && kDevice.on_cpu() ? static_cast<kernels::Backend&>(device) : *engine_,
                            std::move(refuses));
    try {
      exec::Session session(
          backend, books_, file_.get(), job_.layout,
          {.dials = dials, .warn = [&](const std::string& line) { outcome.warnings.push_back(line); }});
      session.set_conditioning(job_.conditioning());
      outcome.video.resize(job_.inputs.video.size());
      outcome.audio.resize(job_.inputs.audio.size());
      for (int i = 0; i < num_forwards; ++i)
        session.forward(job_.inputs.video.data(), job_.inputs.audio.data(), 0.7f, outcome.video.data(),
                        outcome.audio.data());
      outcome.dials = session.dials();
      outcome.effective = session.effective_dials();
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::kOverBudget) << e.what();
      outcome.error = e.what();
    }
    outcome.num_ops = backend.num_ops();
    outcome.refused = backend.refused();
    for (const mem::Space space : mem::kSpaces)
      EXPECT_EQ(books_.report(space).reserved_bytes, at_rest_[mem::index(space)]) << "left behind";
    return outcome;
  }

  static spec::JobSpec job() {
    return {.text_len = 270, .latent_t = 5, .latent_h = 14, .latent_w = 16, .audio_t = 13};
  }

  CheckpointFile file_{small_spec(), /*int8=*/true};
  SmallJob job_{small_spec(), job()};
  mem::Accountant books_{backend::make_allocator(kDevice, {}, /*poison=*/true)};
  std::unique_ptr<kernels::Backend> engine_ = backend::make_backend(kDevice, books_);
  std::array<std::int64_t, mem::kNumSpaces> at_rest_{books_.report(mem::Space::kDevice).reserved_bytes, 0, 0};
};

TEST_P(RefusedLaunch, EveryOpInTurn) {
  const Outcome undisturbed = run(GetParam(), never);
  ASSERT_EQ(undisturbed.error, "");
  std::int64_t recovered = 0, failed = 0;
  for (std::int64_t target = 0; target < undisturbed.num_ops; ++target) {
    const auto once = [target](const OpCall&, std::int64_t number) { return number == target; };
    // Every third time on the device that defers: a retry must not lose its place among the events.
    const Outcome outcome = run(GetParam(), once, /*deferred=*/target % 3 == 0);
    ASSERT_TRUE(outcome.refused);
    SCOPED_TRACE(fmt::format("op {} of {}: {} of {} rows", target, undisturbed.num_ops, outcome.refused->name,
                             outcome.refused->rows));
    if (outcome.refused->rows > StageLimits::kFewestRows) {
      ++recovered;
      EXPECT_EQ(outcome.error, "");
      EXPECT_TRUE(outcome.same_bits(undisturbed));
      EXPECT_EQ(outcome.warnings.size(), 1u);
    } else {
      ++failed;
      EXPECT_NE(outcome.error.find("no memory"), std::string::npos) << outcome.error;
      EXPECT_EQ(outcome.error.find('\n'), std::string::npos);
    }
  }
  EXPECT_GT(recovered, 40);
  EXPECT_GT(failed, 5);
  EXPECT_TRUE(run(GetParam(), never).same_bits(undisturbed));
  std::printf("%ld ops refused in turn: %ld times the run went on, %ld times it ended in one error\n",
              static_cast<long>(undisturbed.num_ops), static_cast<long>(recovered),
              static_cast<long>(failed));
}

TEST_P(RefusedLaunch, WhatWasLearnedIsRememberedAndReported) {
  const Outcome undisturbed = run(GetParam(), never, false, 2);
  EXPECT_EQ(undisturbed.effective.describe(), undisturbed.dials.describe());
  const auto large_attention = [](const OpCall& call, std::int64_t) {
    return std::string(call.name) == "attention" && call.rows > 290;
  };
  const Outcome outcome = run(GetParam(), large_attention, false, 2);
  EXPECT_TRUE(outcome.same_bits(undisturbed));
  ASSERT_FALSE(outcome.warnings.empty());
  EXPECT_LE(outcome.warnings.size(), 2u);  // from 576 by 288 to 256 rows at most, and never again
  EXPECT_NE(outcome.warnings[0].find("attention of"), std::string::npos) << outcome.warnings[0];
  EXPECT_EQ(outcome.dials.describe(), undisturbed.dials.describe());
  EXPECT_LE(outcome.effective.q_chunk, 290);
  EXPECT_GE(outcome.effective.q_chunk, StageLimits::kFewestRows);
  EXPECT_EQ(outcome.effective.kv_chunk, outcome.dials.kv_chunk);
  EXPECT_EQ(outcome.effective.mlp_chunk, outcome.dials.mlp_chunk);
}

TEST_P(RefusedLaunch, BelowTheFloorIsOneErrorThatNamesTheStage) {
  const auto all_residuals = [](const OpCall& call, std::int64_t) {
    return std::string(call.name) == "gated_residual";
  };
  const Outcome outcome = run(GetParam(), all_residuals);
  EXPECT_NE(outcome.error.find("no memory for"), std::string::npos) << outcome.error;
  EXPECT_NE(outcome.error.find("fewer than 256 are not tried: [gated_residual] no memory"), std::string::npos)
      << outcome.error;
}

constexpr std::array kNames{"resident", "head_groups", "flat"};

// 576 tokens: chunks that are divided once, twice, and with a tail too small to be.
INSTANTIATE_TEST_SUITE_P(Schedules, RefusedLaunch,
                         testing::Values(Dials{.schedule = Schedule::kResident,
                                               .q_chunk = 300,
                                               .kv_chunk = 0,
                                               .mlp_chunk = 280,
                                               .head_chunk = 0},
                                         Dials{.schedule = Schedule::kHeadGroups,
                                               .head_group = 2,
                                               .q_chunk = 0,
                                               .kv_chunk = 290,
                                               .mlp_chunk = 0,
                                               .head_chunk = 270},
                                         Dials{.schedule = Schedule::kFlat,
                                               .head_group = 2,
                                               .q_chunk = 320,
                                               .kv_chunk = 280,
                                               .mlp_chunk = 300,
                                               .head_chunk = 0}),
                         [](const auto& param_info) {
                           return std::string(kNames[static_cast<std::size_t>(param_info.param.schedule)]);
                         });

}  // namespace
}  // namespace h3s::test
