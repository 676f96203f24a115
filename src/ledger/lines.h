// The lines of a ledger file: one JSON object each. docs/ledger.md describes every field.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "exec/phase.h"
#include "ledger/system_reading.h"
#include "mem/accountant.h"

namespace h3s::ledger {

inline constexpr int kFormat = 1;
using SpaceBytes = std::array<std::int64_t, mem::kNumSpaces>;

// The first line: what is run, by which plan, where.
struct Header {
  std::string version, started;  // of h3stream; UTC, "2026-11-30T23:59:59Z"
  std::string model, plan, device, backend, compiler;
  std::map<std::string, std::string> settings;                     // what decides the bits
  std::int64_t tokens = 0, blocks = 0, steps = 0, first_step = 0;  // first_step: steps done before this run
  SpaceBytes planned_bytes{};
  std::optional<std::int64_t> device_budget_bytes, ram_budget_bytes;  // empty: unlimited
  std::optional<std::int64_t> device_total_bytes;                     // of a GPU
  std::int64_t cpus = 0, memory_bytes = 0;                            // of the machine
};

struct MemoryReading {
  SpaceBytes held_bytes{}, peak_bytes{};  // the engine's books: now, and most so far
  ProcessMemory process;
  std::optional<std::int64_t> device_used_bytes;  // of a GPU, as its driver says: every process's
};

// A phase of a block, or of a step outside its blocks: the sum of its visits.
struct PhaseLine {
  std::int64_t step = 0;    // from 1; 0: before the first, set_conditioning
  std::int64_t block = -1;  // from 0; -1 outside blocks
  exec::Phase phase = exec::Phase::kText;
  std::int64_t visits = 0;
  double device_ms = 0;                       // all visits, on the device
  double begin_ms = 0, end_ms = 0;            // first visit's begin, last one's end, on the device
  double wall_begin_ms = 0, wall_end_ms = 0;  // the same when the host enqueued them
  MemoryReading memory;                       // at wall_end_ms
};

// What the watchdog says.
struct Remark {
  std::int64_t step = 0, block = 0;
  std::string what;   // "slow", "rss", "pinned"
  std::string cause;  // "paging", "another process", "throttling", "unknown"
  std::string text;   // for a person
};

// The last line; missing where the run was killed.
struct Closing {
  std::string outcome;  // "done", "interrupted", or what failed
  std::int64_t steps_done = 0;
  double wall_ms = 0;
  SpaceBytes peak_bytes{};
};

using Json = nlohmann::ordered_json;
Json to_json(const Header& header);
Json to_json(const PhaseLine& line, std::int64_t planned_device_bytes);
Json to_json(const Remark& remark);
Json to_json(const Closing& closing);

// As a line of the file, newline included; bytes that are not UTF-8 become U+FFFD.
std::string line_text(const Json& json);

}  // namespace h3s::ledger
