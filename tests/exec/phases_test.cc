// Phases: told in the order of the schedule, timed without waiting for the device, and harmless.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "exec/deferred_backend.h"
#include "exec/engine_fixture.h"
#include "exec/phase_clock.h"

namespace h3s::test {
namespace {

using exec::Phase;
using exec::PhasePoint;

struct Log final : exec::PhaseObserver {
  void enter(const PhasePoint& point) override { text += name(point) + ' '; }
  void leave() override { text += "| "; }
  static std::string name(const PhasePoint& p) {
    const std::string block = p.block_idx < 0 ? "" : fmt::format("{}.", p.block_idx);
    return fmt::format("{}:{}{}", p.forward_idx, block, exec::phase_name(p.phase));
  }
  std::string text;
};

class Phases : public testing::Test {
 protected:
  std::vector<float> run(kernels::Backend& backend, const exec::Dials& dials,
                         const std::vector<exec::PhaseObserver*>& observers, int forwards = 1) {
    exec::Session session(backend, books_, file_.get(), run_.layout, {.dials = dials});
    for (exec::PhaseObserver* observer : observers) session.add_observer(*observer);
    session.set_conditioning(run_.conditioning());
    std::vector<float> video(run_.inputs.video.size()), audio(run_.inputs.audio.size());
    for (int i = 0; i < forwards; ++i)
      session.forward(run_.inputs.video.data(), run_.inputs.audio.data(), 0.7f, video.data(), audio.data());
    return video;
  }

  CheckpointFile file_{small_spec(), true};
  SmallJob run_{small_spec(), ragged_job()};
  mem::Accountant books_{mem::make_heap_allocator(true)};
  std::unique_ptr<kernels::Backend> backend_ = cpu::make_backend(2, books_);
};

TEST_F(Phases, FollowTheSchedule) {
  Log resident, grouped, ahead;
  run(*backend_, {.q_chunk = 200}, {&resident}, 2);  // 323 tokens: two query chunks
  run(*backend_, {.schedule = exec::Schedule::kFlat, .head_group = 2}, {&grouped});
  run(*backend_, {.schedule = exec::Schedule::kFlat, .head_group = 2, .q_chunk = 200, .project_ahead = true},
      {&ahead});
  EXPECT_EQ(resident.text,
            "-1:text | "
            "0:embed 0:0.kv 0:0.attn 0:0.mlp 0:0.kv 0:0.attn 0:0.mlp "
            "0:1.kv 0:1.attn 0:1.mlp 0:1.kv 0:1.attn 0:1.mlp 0:final | "
            "1:embed 1:0.kv 1:0.attn 1:0.mlp 1:0.kv 1:0.attn 1:0.mlp "
            "1:1.kv 1:1.attn 1:1.mlp 1:1.kv 1:1.attn 1:1.mlp 1:final | ");
  EXPECT_EQ(grouped.text,
            "-1:text | 0:embed 0:0.kv 0:0.attn 0:0.kv 0:0.attn 0:0.mlp "
            "0:1.kv 0:1.attn 0:1.kv 0:1.attn 0:1.mlp 0:final | ");
  // The second group is projected chunk by chunk between the first one's queries.
  EXPECT_EQ(ahead.text,
            "-1:text | 0:embed 0:0.kv 0:0.attn 0:0.kv 0:0.attn 0:0.kv 0:0.attn 0:0.mlp "
            "0:1.kv 0:1.attn 0:1.kv 0:1.attn 0:1.kv 0:1.attn 0:1.mlp 0:final | ");
}

// One span for each visit, in the order told, each within what its two ends allow.
void expect_spans(const std::vector<exec::PhaseSpan>& spans, const std::string& told) {
  std::string names;
  double last = 0;
  for (const exec::PhaseSpan& span : spans) {
    names += Log::name(span.point) + ' ';
    EXPECT_LE(last, span.begin_ms);
    EXPECT_LE(span.begin_ms, span.end_ms);
    last = span.end_ms;
  }
  std::string expected = told;
  for (std::size_t at; (at = expected.find("| ")) != std::string::npos;) expected.erase(at, 2);
  EXPECT_EQ(names, expected);
}

TEST_F(Phases, AreTimedOnTheHostsClockWhereOpsAreFinishedAtOnce) {
  Log log;
  exec::PhaseClock clock(*backend_);
  const auto seconds = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  const double before = seconds();
  run(*backend_, {}, {&clock, &log});
  const double after = seconds();
  const std::vector<exec::PhaseSpan> spans = clock.collect();
  expect_spans(spans, log.text);
  EXPECT_GE(spans.front().begin_ms, before * 1e3);
  EXPECT_LE(spans.back().end_ms, after * 1e3);
  EXPECT_TRUE(clock.collect().empty());
}

TEST_F(Phases, ReadingTimesRunsNothingOnADeviceThatLags) {
  DeferredBackend device(*backend_, 1);
  exec::PhaseClock clock(device);
  clock.enter({0, 0, Phase::kKv});
  clock.enter({0, 0, Phase::kAttn});
  const kernels::Event end_of_kv = device.record(kernels::Queue::kCompute);
  clock.leave();
  EXPECT_TRUE(clock.collect().empty());
  device.sync(end_of_kv);
  EXPECT_EQ(clock.collect().size(), 1u);
  device.sync(device.record(kernels::Queue::kCompute));
  EXPECT_EQ(clock.collect().size(), 1u);
}

TEST_F(Phases, ChangeNoBitAndLoseNoSpanOnADeviceThatLags) {
  const exec::Dials dials{.schedule = exec::Schedule::kFlat, .head_group = 2, .q_chunk = 90};
  const std::vector<float> expected = run(*backend_, dials, {});
  for (const std::uint64_t seed : {1, 2, 3}) {
    DeferredBackend device(*backend_, seed);
    exec::PhaseClock clock(device);
    Log log;
    EXPECT_TRUE(run(device, dials, {&clock, &log}, 2) == expected);
    expect_spans(clock.collect(), log.text);  // the session has drained the device
  }
}

TEST_F(Phases, AnObserverThatThrowsEndsTheRunAndLeavesNothingBehind) {
  struct Thrower final : exec::PhaseObserver {
    void enter(const PhasePoint& point) override {
      if (point == PhasePoint{0, 1, Phase::kAttn}) throw Error(Status::kIo, "stop");
    }
    void leave() override {}
  } thrower;
  const std::int64_t before = books_.current_bytes(mem::Space::kDevice);
  EXPECT_THROW(run(*backend_, {}, {&thrower}), Error);
  EXPECT_EQ(books_.current_bytes(mem::Space::kDevice), before);
}

}  // namespace
}  // namespace h3s::test
