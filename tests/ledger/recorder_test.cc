// Ledgers of real sessions: complete on every device, silent about a good run, not about a bad one.
#include "ledger/recorder.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "exec/deferred_backend.h"
#include "exec/engine_fixture.h"
#include "exec/footprint.h"
#include "ledger/ledger_fixture.h"
#include "ledger/summary.h"

namespace h3s::test {
namespace {

using exec::Phase;

// Attention from one block of the run on takes longer: what an op does that lost its processor.
struct SlowAttention final : exec::PhaseObserver {
  void enter(const exec::PhasePoint& point) override {
    if (point.phase != Phase::kAttn) return;
    if (++visits > from) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  void leave() override {}
  int visits = 0, from = INT_MAX;
};

class Recording : public testing::Test {
 protected:
  Recording() { spec_.layers = 5; }

  ledger::Ledger record(kernels::Backend& backend, const exec::Dials& dials,
                        exec::PhaseObserver* more = nullptr, int forwards = 2) {
    const TemporaryFolder folder;
    ledger::Directory directory(folder.file("l"));
    books_.reset_peaks();
    ledger::Header header = known_header();
    header.blocks = spec_.layers;
    header.device_budget_bytes.reset();
    header.steps = header.first_step + forwards;
    const exec::Footprint footprint =
        exec::measure_footprint(file_.get(), run_.layout, {.dials = dials}, backend.device_is_host());
    for (std::size_t i = 0; i < 3; ++i) header.planned_bytes[i] = footprint.spaces[i].peak_bytes;
    header.planned_bytes[0] += cpu::workspace_bytes(2);
    {
      ledger::Recorder recorder(directory, header,
                                {backend, books_, {}, [this](const std::string& line) { said_ += line; }});
      {
        exec::Session session(backend, books_, file_.get(), run_.layout, {.dials = dials});
        session.add_observer(recorder);
        if (more != nullptr) session.add_observer(*more);
        session.set_conditioning(run_.conditioning());
        std::vector<float> video(run_.inputs.video.size()), audio(run_.inputs.audio.size());
        for (int i = 0; i < forwards; ++i)
          session.forward(run_.inputs.video.data(), run_.inputs.audio.data(), 0.7f, video.data(),
                          audio.data());
      }
      recorder.close("done", forwards);
    }
    return ledger::read_ledger(ledger::ledger_path(folder.file("l")));
  }

  spec::ModelSpec spec_ = small_spec();
  CheckpointFile file_{[] {
                         spec::ModelSpec spec = small_spec();
                         spec.layers = 5;
                         return spec;
                       }(),
                       true};
  SmallJob run_{small_spec(), ragged_job()};
  mem::Accountant books_{mem::make_heap_allocator()};
  std::unique_ptr<kernels::Backend> cpu_ = cpu::make_backend(2, books_);
  std::string said_;
};

std::string names(const ledger::Ledger& read) {
  std::string text;
  for (const ledger::PhaseLine& line : read.phases)
    text += fmt::format("{}:{}{} ", line.step, line.block < 0 ? "" : fmt::format("{}.", line.block),
                        exec::phase_name(line.phase));
  return text;
}

std::string expected_names(int layers, int forwards) {
  std::string text = "0:text ";
  for (int step = 1; step <= forwards; ++step) {
    text += fmt::format("{}:embed ", step);
    for (int block = 0; block < layers; ++block)
      for (const char* phase : {"kv", "attn", "mlp"}) text += fmt::format("{}:{}.{} ", step, block, phase);
    text += fmt::format("{}:final ", step);
  }
  return text;
}

TEST_F(Recording, HasOneLineForEachBlockAndPhaseUnderEveryScheduleAndDevice) {
  for (const exec::Dials& dials :
       {exec::Dials{.q_chunk = 100}, exec::Dials{.schedule = exec::Schedule::kFlat, .head_group = 2}}) {
    DeferredBackend deferred(*cpu_, 7);
    for (kernels::Backend* backend : {cpu_.get(), static_cast<kernels::Backend*>(&deferred)}) {
      const ledger::Ledger read = record(*backend, dials);
      EXPECT_EQ(names(read), expected_names(5, 2));
      EXPECT_EQ(read.closing->outcome, "done");
      const ledger::Summary summary = ledger::summarise(read);
      EXPECT_EQ(summary.steps, 2);
      EXPECT_EQ(summary.blocks, 10);
      EXPECT_TRUE(within_plan(read, summary));
      for (const ledger::PhaseLine& line : read.phases) {
        EXPECT_GT(line.visits, 0);
        EXPECT_LE(line.begin_ms + line.device_ms, line.end_ms + 0.002);  // each rounded to a microsecond
        EXPECT_LE(line.wall_begin_ms, line.wall_end_ms);
        EXPECT_GT(line.memory.process.rss_anon_bytes, 0);
      }
    }
  }
  EXPECT_EQ(said_, "");
}

// Phases follow each other without a gap: their times add up to the step's.
TEST_F(Recording, TimesOfThePhasesAddUp) {
  const ledger::Ledger read = record(*cpu_, {.q_chunk = 100});
  for (int step = 1; step <= 2; ++step) {
    double sum = 0, begin = INFINITY, end = 0;
    for (const ledger::PhaseLine& line : read.phases) {
      if (line.step != step) continue;
      sum += line.device_ms;
      begin = std::min(begin, line.begin_ms);
      end = std::max(end, line.end_ms);
    }
    EXPECT_NEAR(sum, end - begin, 0.001 * 20);  // 17 lines, each rounded to a microsecond
  }
}

TEST_F(Recording, AnOpThatSlowsDownIsRemarkedOnce) {
  SlowAttention slow;
  slow.from = 8;
  const ledger::Ledger read = record(*cpu_, {}, &slow, 3);
  ASSERT_EQ(read.remarks.size(), 1u) << said_;
  EXPECT_EQ(read.remarks[0].what, "slow");
  EXPECT_GE((read.remarks[0].step - 1) * 5 + read.remarks[0].block, 9) << "two slow blocks of the last three";
  EXPECT_NE(said_.find("likely cause"), std::string::npos) << said_;
}

TEST_F(Recording, AFullDiskEndsTheLedgerAndNotTheRun) {
  const int full = ::open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  struct Filler final : exec::PhaseObserver {  // the ledger's descriptor is a full disk's from a block on
    void enter(const exec::PhasePoint& point) override {
      if (point.block_idx != 1 || done) return;
      done = true;
      for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code error;
        const auto target = std::filesystem::read_symlink(entry.path(), error);
        if (target.filename() == "ledger.jsonl") ::dup2(full, std::stoi(entry.path().filename()));
      }
    }
    void leave() override {}
    int full = -1;
    bool done = false;
  } filler;
  filler.full = full;
  const ledger::Ledger read = record(*cpu_, {}, &filler);
  ::close(full);
  EXPECT_FALSE(read.closing);
  EXPECT_EQ(read.phases.back().block, 0);
  EXPECT_NE(said_.find("the ledger ends here"), std::string::npos) << said_;
  EXPECT_EQ(said_.find("the ledger ends here"), said_.rfind("the ledger ends here"));
}

}  // namespace
}  // namespace h3s::test
