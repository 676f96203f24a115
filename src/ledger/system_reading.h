// What the operating system says of this process and of the machine, read from /proc and /sys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace h3s::ledger {

// A few microseconds to read; smaps_rollup would walk the page tables of everything mapped.
struct ProcessMemory {
  std::int64_t rss_anon_bytes = 0;   // heap, arenas: memory without a file
  std::int64_t rss_file_bytes = 0;   // pages of mapped files: the checkpoint
  std::int64_t rss_shmem_bytes = 0;  // shared memory; where some drivers put pinned buffers
  std::int64_t swap_bytes = 0;       // of this process, swapped out
};

// Counters since the start of the process or machine; compare two readings.
struct MachineLoad {
  std::int64_t major_faults = 0;              // of this process: pages that had to come from disk
  double own_cpu_s = 0;                       // CPU time of this process
  double all_cpu_s = 0;                       // CPU time of everything, this process included
  double steal_s = 0;                         // CPU time the hypervisor gave to others
  double load_1min = 0;                       // tasks running or waiting, averaged over a minute
  std::optional<std::int64_t> cpu_throttles;  // times the processor slowed down for heat, where it says so
};

// `root` is where proc and sys are: "" but in tests. What cannot be read is 0 or empty.
ProcessMemory read_process_memory(const std::string& root = "");
MachineLoad read_machine_load(const std::string& root = "");

}  // namespace h3s::ledger
