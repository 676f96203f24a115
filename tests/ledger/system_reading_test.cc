// Readings of the system, from a /proc of our own and from the real one.
#include "ledger/system_reading.h"

#include <sys/mman.h>

#include <cstring>

#include "ledger/ledger_fixture.h"

namespace h3s::test {
namespace {

TEST(SystemReading, OfAKnownProc) {
  const TemporaryFolder root;
  root.write("proc/self/status",
             "Name:\tRssAnon: 9 kB\nVmSwap:\t      12 kB\nRssAnon:\t     100 kB\nRssFile:\t 20 "
             "kB\nRssShmem:\t3 kB\n");
  // Fields 12 (major faults), 14 and 15 (ticks) after a name with spaces and a parenthesis.
  root.write("proc/self/stat", "17 (a ) b) S 1 1 1 0 -1 4194304 100 0 77 0 300 200 0 0 20 0 1 0");
  root.write("proc/stat", "cpu  1000 100 500 9000 10 20 30 400 50 0\ncpu0 1 1 1 1\n");
  root.write("proc/loadavg", "3.25 2.00 1.00 2/345 6789\n");
  root.write("sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count", "6\n");
  const ledger::ProcessMemory memory = ledger::read_process_memory(root.file(""));
  EXPECT_EQ(memory.rss_anon_bytes, 100 << 10);
  EXPECT_EQ(memory.rss_file_bytes, 20 << 10);
  EXPECT_EQ(memory.rss_shmem_bytes, 3 << 10);
  EXPECT_EQ(memory.swap_bytes, 12 << 10);
  const ledger::MachineLoad load = ledger::read_machine_load(root.file(""));
  const auto tick = static_cast<double>(::sysconf(_SC_CLK_TCK));
  EXPECT_EQ(load.major_faults, 77);
  EXPECT_DOUBLE_EQ(load.own_cpu_s, 500 / tick);
  EXPECT_DOUBLE_EQ(load.all_cpu_s, 1650 / tick);
  EXPECT_DOUBLE_EQ(load.steal_s, 400 / tick);
  EXPECT_DOUBLE_EQ(load.load_1min, 3.25);
  EXPECT_EQ(load.cpu_throttles, 6);
}

TEST(SystemReading, WhatIsNotThereIsZero) {
  const TemporaryFolder root;
  EXPECT_EQ(ledger::read_process_memory(root.file("")).rss_anon_bytes, 0);
  const ledger::MachineLoad load = ledger::read_machine_load(root.file(""));
  EXPECT_EQ(load.all_cpu_s, 0);
  EXPECT_FALSE(load.cpu_throttles);
}

TEST(SystemReading, SeesMemoryThatIsTouched) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const std::int64_t before = ledger::read_process_memory().rss_anon_bytes;
  void* data = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  std::memset(data, 1, kBytes);
  const std::int64_t after = ledger::read_process_memory().rss_anon_bytes;
  ::munmap(data, kBytes);
  // The kernel counts in batches: 64 pages on each CPU may not be in yet.
  EXPECT_NEAR(static_cast<double>(after - before), static_cast<double>(kBytes), 4 << 20);
}

}  // namespace
}  // namespace h3s::test
