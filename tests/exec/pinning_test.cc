// A system that refuses to pin: fewer slots, then ordinary memory, one warning, the same bits.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "exec/deferred_backend.h"
#include "exec/engine_fixture.h"
#include "exec/footprint.h"
#include "exec/replan.h"
#include "exec/session_arena.h"

namespace h3s::test {
namespace {

using mem::Space;

// Pins up to a limit, and counts what is asked for instead.
class StingyAllocator final : public mem::RawAllocator {
 public:
  StingyAllocator(std::int64_t most_pinned, std::int64_t& unpinned_bytes)
      : most_pinned_(most_pinned), unpinned_bytes_(unpinned_bytes) {}

  void* allocate(Space space, std::int64_t bytes) override {
    if (space == Space::kPinned && bytes > most_pinned_) fail(Status::kOverBudget, "[mem] cannot pin");
    return heap_->allocate(space, bytes);
  }
  void release(Space space, void* data, std::int64_t bytes) noexcept override {
    heap_->release(space, data, bytes);
  }
  void* allocate_unpinned(std::int64_t bytes) override {
    unpinned_bytes_ += bytes;
    return heap_->allocate(Space::kPinned, bytes);
  }
  void hand_out(Space space, void* data, std::int64_t bytes) override { heap_->hand_out(space, data, bytes); }
  void take_back(Space space, void* data, std::int64_t bytes) noexcept override {
    heap_->take_back(space, data, bytes);
  }

 private:
  std::int64_t most_pinned_;
  std::int64_t& unpinned_bytes_;
  std::unique_ptr<mem::RawAllocator> heap_ = mem::make_heap_allocator(/*poison=*/true);
};

struct Outcome {
  std::vector<float> video;
  std::vector<std::string> warnings;
  std::int64_t unpinned_bytes = 0;
};

class Pinning : public testing::Test {
 protected:
  // On a device with memory of its own.
  Outcome run(std::int64_t most_pinned) {
    Outcome outcome;
    mem::Accountant books(std::make_unique<StingyAllocator>(most_pinned, outcome.unpinned_bytes));
    const auto cpu = cpu::make_backend(2, books);
    DeferredBackend device(*cpu, 7);
    exec::SessionOptions options = options_;
    options.warn = [&](const std::string& line) { outcome.warnings.push_back(line); };
    exec::Session session(device, books, file_.get(), job_.layout, options);
    session.set_conditioning(job_.conditioning());
    outcome.video.resize(job_.inputs.video.size());
    std::vector<float> audio(job_.inputs.audio.size());
    session.forward(job_.inputs.video.data(), job_.inputs.audio.data(), 0.7f, outcome.video.data(),
                    audio.data());
    return outcome;
  }

  std::int64_t pinned_bytes(std::int64_t weight_slots) {
    mem::Accountant books(mem::make_dry_allocator());
    exec::SessionOptions options = options_;
    options.dials.weight_slots = weight_slots;
    const exec::WeightLoader loader(file_.get(), options.compute, /*device_is_host=*/false);
    return mem::place(record_session(books, loader, job_.layout, options, false).buffers())
        .arena_bytes[mem::index(Space::kPinned)];
  }

  CheckpointFile file_{small_spec(), true};
  SmallJob job_{small_spec(), ragged_job()};
  exec::SessionOptions options_{
      .dials = {.schedule = exec::Schedule::kFlat, .head_group = 2, .q_chunk = 100}};
};

TEST_F(Pinning, FewerSlotsThenOrdinaryMemory) {
  const std::int64_t two = pinned_bytes(2), one = pinned_bytes(1);
  ASSERT_LT(one, two);
  const Outcome all = run(two);
  EXPECT_TRUE(all.warnings.empty());
  EXPECT_EQ(all.unpinned_bytes, 0);

  const Outcome fewer = run(two - 1);
  ASSERT_EQ(fewer.warnings.size(), 1u);
  EXPECT_NE(fewer.warnings[0].find("one slot"), std::string::npos);
  EXPECT_EQ(fewer.unpinned_bytes, 0);
  EXPECT_EQ(fewer.video, all.video);

  // The allocator warns of ordinary memory: it knows what that means on its device.
  const Outcome ordinary = run(one - 1);
  EXPECT_TRUE(ordinary.warnings.empty());
  EXPECT_EQ(ordinary.unpinned_bytes, two);
  EXPECT_EQ(ordinary.video, all.video);
}

TEST_F(Pinning, BudgetsAreNotAMatterOfPinning) {
  std::int64_t unpinned = 0;
  mem::Accountant books(std::make_unique<StingyAllocator>(mem::kUnlimited, unpinned));
  books.set_budget(Space::kPinned, pinned_bytes(2) - 1);
  const auto cpu = cpu::make_backend(2, books);
  DeferredBackend device(*cpu, 7);
  EXPECT_THROW(exec::Session(device, books, file_.get(), job_.layout, options_), Error);
  EXPECT_EQ(unpinned, 0);
}

// Another process takes device memory between the plan and the run.
TEST_F(Pinning, ADeviceThatRefusesIsPlannedForOnceMore) {
  class Taken final : public mem::RawAllocator {
   public:
    explicit Taken(const std::int64_t& free_bytes) : free_bytes_(free_bytes) {}
    void* allocate(Space space, std::int64_t bytes) override {
      if (space == Space::kDevice && bytes > free_bytes_) fail(Status::kOverBudget, "[mem] taken");
      return heap_->allocate(space, bytes);
    }
    void release(Space space, void* data, std::int64_t bytes) noexcept override {
      heap_->release(space, data, bytes);
    }

   private:
    const std::int64_t& free_bytes_;
    std::unique_ptr<mem::RawAllocator> heap_ = mem::make_heap_allocator();
  };
  std::int64_t free_bytes = mem::kUnlimited;
  mem::Accountant books(std::make_unique<Taken>(free_bytes));
  const auto cpu = cpu::make_backend(1, books);
  exec::SessionOptions options;  // resident
  const auto device_bytes = [&] {
    return measure_footprint(file_.get(), job_.layout, options, true).peak_bytes(Space::kDevice);
  };
  free_bytes = device_bytes() - 1;
  int replans = 0;
  const auto build = [&] {
    return std::make_unique<exec::Session>(*cpu, books, file_.get(), job_.layout, options);
  };
  const auto smaller = [&](const mem::Refused& refused) {
    ++replans;
    EXPECT_EQ(refused.space(), Space::kDevice);
    options.dials = {.schedule = exec::Schedule::kFlat,
                     .head_group = 1,
                     .q_chunk = 64,
                     .kv_chunk = 64,
                     .mlp_chunk = 64,
                     .head_chunk = 64};
    return device_bytes() <= free_bytes;
  };
  EXPECT_NE(exec::build_or_replan(build, smaller), nullptr);
  EXPECT_EQ(replans, 1);
  free_bytes = device_bytes() - 1;
  EXPECT_THROW(exec::build_or_replan(build, smaller), mem::Refused);
  EXPECT_EQ(replans, 2);
  EXPECT_THROW(exec::build_or_replan(build, [&](const mem::Refused&) { return ++replans > 0; }), mem::Refused)
      << "a second plan that fails too";
  EXPECT_EQ(replans, 3);
}

}  // namespace
}  // namespace h3s::test
