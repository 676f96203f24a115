// The watchdog's decisions, fed with numbers.
#include "ledger/watchdog.h"

#include "ledger/ledger_fixture.h"

namespace h3s::test {
namespace {

using ledger::BlockReading;
using ledger::Remark;

constexpr std::int64_t kMiB = 1 << 20;

// A machine of 4 CPUs where every block takes a second and nothing else happens; change() makes it worse from
// block `from` on.
class Machine {
 public:
  explicit Machine(bool gpu = false) {
    now_.process.rss_anon_bytes = 100 * kMiB;
    now_.pinned_bytes = 10 * kMiB;
    if (gpu) now_.device = ledger::DeviceReading{8000 * kMiB, 16000 * kMiB, 1800, false};
  }
  template <typename Change>
  std::vector<Remark> run(int blocks, int from, double seconds, Change change) {
    ledger::Watchdog watchdog({.rss_anon_bytes = 200 * kMiB, .pinned_bytes = 10 * kMiB, .cpus = 4});
    std::vector<Remark> remarks;
    for (int i = 0; i < blocks; ++i) {
      now_.block = i;
      now_.seconds = i < from ? 1 : seconds;
      now_.wall_end_s += now_.seconds;
      now_.load.own_cpu_s += 2 * now_.seconds;
      now_.load.all_cpu_s += 2.2 * now_.seconds;
      if (i >= from) change(now_);
      for (const Remark& remark : watchdog.look(now_)) remarks.push_back(remark);
    }
    return remarks;
  }

 private:
  BlockReading now_{.step = 1};
};

void nothing(BlockReading&) {}

TEST(Watchdog, AnEvenPaceIsSilent) {
  EXPECT_TRUE(Machine().run(1000, 1000, 1, nothing).empty());
  EXPECT_TRUE(Machine().run(1000, 10, 1.99, nothing).empty());
}

TEST(Watchdog, MoreThanTwiceTheFirstBlocksIsSaidOnce) {
  const std::vector<Remark> remarks = Machine().run(1000, 10, 2.01, nothing);
  ASSERT_EQ(remarks.size(), 1u);
  EXPECT_EQ(remarks[0].what, "slow");
  EXPECT_EQ(remarks[0].cause, "unknown");
  EXPECT_EQ(remarks[0].block, 11);  // two of the last three blocks are slow
  EXPECT_NE(remarks[0].text.find("2.01 s"), std::string::npos) << remarks[0].text;
}

TEST(Watchdog, OneHiccupIsNone) {
  ledger::Watchdog watchdog({.rss_anon_bytes = kMiB, .pinned_bytes = 0, .cpus = 1});
  for (int i = 0; i < 100; ++i)
    EXPECT_TRUE(watchdog.look({.block = i, .seconds = i % 10 == 0 ? 30.0 : 1.0}).empty()) << i;
}

TEST(Watchdog, BlocksOfNoTimeMayVary) {
  ledger::Watchdog watchdog({.rss_anon_bytes = kMiB, .pinned_bytes = 0, .cpus = 1});
  for (int i = 0; i < 100; ++i)
    EXPECT_TRUE(watchdog.look({.block = i, .seconds = i < 10 ? 0.001 : 0.010}).empty()) << i;
}

std::string cause(bool gpu, void (*change)(BlockReading&)) {
  const std::vector<Remark> remarks = Machine(gpu).run(20, 10, 5, change);
  EXPECT_EQ(remarks.size(), 1u);
  return remarks.empty() ? "" : remarks[0].cause;
}

TEST(Watchdog, TellsTheCauses) {
  EXPECT_EQ(cause(false, [](BlockReading& r) { r.load.major_faults += 20000; }), "paging");
  EXPECT_EQ(cause(false,
                  [](BlockReading& r) {
                    r.process.swap_bytes += 40 * kMiB;
                    r.process.rss_anon_bytes -= 40 * kMiB;
                  }),
            "paging");
  EXPECT_EQ(cause(false, [](BlockReading& r) { r.load.all_cpu_s += 10; }), "another process");
  EXPECT_EQ(cause(false, [](BlockReading& r) { r.load.steal_s += 10; }), "another process");
  EXPECT_EQ(cause(true, [](BlockReading& r) { r.device->free_bytes = 5000 * kMiB; }), "another process");
  EXPECT_EQ(cause(true, [](BlockReading& r) { r.device->clock_mhz = 900; }), "throttling");
  EXPECT_EQ(cause(true, [](BlockReading& r) { r.device->throttled = true; }), "throttling");
  EXPECT_EQ(
      cause(false, [](BlockReading& r) { r.load.cpu_throttles = r.load.cpu_throttles.value_or(0) + 1; }),
      "throttling");
  EXPECT_EQ(cause(true, nothing), "unknown");
}

TEST(Watchdog, SmallSignsAreNoCause) {
  EXPECT_EQ(cause(false, [](BlockReading& r) { r.load.major_faults += 100; }), "unknown");
  EXPECT_EQ(cause(false, [](BlockReading& r) { r.load.all_cpu_s += 1; }), "unknown");
  EXPECT_EQ(cause(true, [](BlockReading& r) { r.device->free_bytes = 7950 * kMiB; }), "unknown");
  EXPECT_EQ(cause(true, [](BlockReading& r) { r.device->clock_mhz = 1500; }), "unknown");
  EXPECT_EQ(cause(true, [](BlockReading& r) { r.device->clock_mhz.reset(); }), "unknown");
}

TEST(Watchdog, AnonymousMemoryBeyondThePlanIsSaidOnceSwappedOutOrNot) {
  for (const bool swapped : {false, true}) {
    const std::vector<Remark> remarks = Machine().run(50, 2, 1, [swapped](BlockReading& r) {
      (swapped ? r.process.swap_bytes : r.process.rss_anon_bytes) += 30 * kMiB;
    });
    ASSERT_EQ(remarks.size(), 1u);
    EXPECT_EQ(remarks[0].what, "rss");
    EXPECT_EQ(remarks[0].block, 5);  // 100 + 4 x 30 is the first above 200
    EXPECT_NE(remarks[0].text.find("220.00 MiB"), std::string::npos) << remarks[0].text;
  }
}

TEST(Watchdog, PinnedMemoryBeyondThePlanIsSaidToo) {
  const std::vector<Remark> remarks = Machine().run(9, 3, 1, [](BlockReading& r) { r.pinned_bytes += 1; });
  ASSERT_EQ(remarks.size(), 1u);
  EXPECT_EQ(remarks[0].what, "pinned");
  EXPECT_EQ(remarks[0].block, 3);
}

}  // namespace
}  // namespace h3s::test
