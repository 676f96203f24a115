// Real schedules: the arena is exactly as large as the most that is held at once, whatever the dials; a
// forward allocates nothing, from the books or from the heap.
#include "exec/session_arena.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "exec/engine_fixture.h"
#include "kernels/forwarding_backend.h"
#include "mem/heap_watch.h"

namespace h3s::test {
namespace {

using mem::Space;

TEST(SessionArena, IsAsLargeAsWhatIsHeldAtOnce) {
  for (const bool int8 : {false, true}) {
    const CheckpointFile file(small_spec(), int8);
    const SmallJob run(small_spec(), ragged_job());
    for (const verify::NamedPlan& plan : verify::plan_list("all"))
      for (const bool device_is_host : {false, true}) {
        mem::Accountant books(mem::make_dry_allocator());
        const exec::WeightLoader loader(file.get(), DType::kBF16, device_is_host);
        const auto recording =
            exec::record_session(books, loader, run.layout, {.dials = plan.dials}, device_is_host);
        const mem::Placement placement = mem::place(recording.buffers());
        EXPECT_EQ(placement.arena_bytes, placement.live_peak_bytes) << plan.describe();
        for (const Space space : mem::kSpaces)
          EXPECT_EQ(placement.live_peak_bytes[mem::index(space)], books.peak_bytes(space)) << plan.describe();
      }
  }
}

// Asks for memory when an op runs, as a careless backend would.
class AllocatingBackend final : public kernels::ForwardingBackend {
 public:
  AllocatingBackend(kernels::Backend& inner, mem::Accountant& books)
      : ForwardingBackend(inner), books_(books) {}

 protected:
  void op(const kernels::OpCall& call, kernels::RunOp run) override {
    if (std::string(call.name) == "attention") books_.allocate(Space::kDevice, 4096, "a careless op");
    run();
  }

 private:
  mem::Accountant& books_;
};

TEST(SessionArena, AnAllocationDuringAForwardIsAnErrorThatNamesIt) {
  const CheckpointFile file(small_spec(), true);
  const SmallJob run(small_spec(), ragged_job());
  mem::Accountant books(mem::make_heap_allocator(true));
  const auto cpu = cpu::make_backend(2, books);
  AllocatingBackend careless(*cpu, books);
  exec::Session session(careless, books, file.get(), run.layout, {});
  try {
    session.set_conditioning(run.conditioning());
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::kInternal);
    EXPECT_EQ(std::string(e.what()),
              "[mem] a careless op asked for 4.00 KiB of device memory during set_conditioning(), which may "
              "allocate nothing");
  }
}

// Heap bytes that one forward asks for on all threads, in requests of `at_least` bytes and more.
std::int64_t heap_bytes_of_forward(std::int64_t latent_t, exec::Schedule schedule, std::int64_t at_least) {
  const CheckpointFile file(small_spec(), true);
  spec::JobSpec job = ragged_job();
  job.latent_t = latent_t;
  const SmallJob run(small_spec(), job);
  mem::Accountant books(mem::make_heap_allocator());
  const auto cpu = cpu::make_backend(2, books);
  const exec::SessionOptions options{.dials = {.schedule = schedule, .head_group = 2}};
  exec::Session session(*cpu, books, file.get(), run.layout, options);
  session.set_conditioning(run.conditioning());
  std::vector<float> video(run.inputs.video.size()), audio(run.inputs.audio.size());
  const HeapWatch watch(at_least);
  session.forward(run.inputs.video.data(), run.inputs.audio.data(), 0.5f, video.data(), audio.data());
  return watch.bytes();
}

// What a forward may ask the heap for is names, the axes of a segment's positions (8 bytes a frame) and the
// few rows of a step's timesteps. One row of activations of the real network is more than twice this, and so
// is a byte a token here.
constexpr std::int64_t kSmall = 4096, kFrames = 80;

TEST(SessionArena, AForwardAsksTheHeapForNothingOfSize) {
  if (!HeapWatch::works()) GTEST_SKIP() << "a sanitizer has its own heap";
  for (const auto schedule : {exec::Schedule::kResident, exec::Schedule::kHeadGroups, exec::Schedule::kFlat})
    EXPECT_EQ(heap_bytes_of_forward(kFrames, schedule, kSmall), 0) << exec::schedule_name(schedule);
}

TEST(HeapWatch, CountsEveryKindOfRequestOnEveryThread) {
  if (!HeapWatch::works()) GTEST_SKIP() << "a sanitizer has its own heap";
  const HeapWatch watch(1000);
  void* volatile keep = nullptr;  // else the compiler knows that nobody looks
  const auto use = [&keep](void* data) {
    keep = data;
    return keep;
  };
  std::free(use(std::malloc(1000)));
  std::free(use(std::malloc(999)));
  ::operator delete(use(::operator new(2000)));
  std::thread([&] { std::free(use(std::aligned_alloc(256, 4096))); }).join();
  EXPECT_EQ(watch.bytes(), 1000 + 2000 + 4096);
}

}  // namespace
}  // namespace h3s::test
