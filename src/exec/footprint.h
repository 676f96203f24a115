// Peak bytes of a run before it starts: the same allocations against books that hold no memory.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "exec/session.h"
#include "mem/accountant.h"
#include "spec/layout.h"

namespace h3s::exec {

// What the caller holds beside the session, per space: backend workspace, sampler state, inputs.
struct FixedBytes {
  std::array<std::int64_t, mem::kNumSpaces> bytes{};
  std::int64_t& operator[](mem::Space space) { return bytes[static_cast<std::size_t>(space)]; }
  std::int64_t operator[](mem::Space space) const { return bytes[static_cast<std::size_t>(space)]; }
};

struct Footprint {
  std::array<mem::SpaceReport, mem::kNumSpaces> spaces;
  std::int64_t peak_bytes(mem::Space space) const {
    return spaces[static_cast<std::size_t>(space)].peak_bytes;
  }
};

// Exact peaks of constructing a Session and running it. Touches no tensor data. `device_is_host` as the
// backend says.
Footprint measure_footprint(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                            const SessionOptions& options, bool device_is_host, const FixedBytes& fixed = {});

// Budgets of the three spaces; kUnlimited where none was given.
struct Budgets {
  std::array<std::int64_t, mem::kNumSpaces> bytes{mem::kUnlimited, mem::kUnlimited, mem::kUnlimited};
  // Pinned memory is host memory: the two together stay within this.
  std::int64_t ram_bytes = mem::kUnlimited;
};

bool fits(const Footprint& footprint, const Budgets& budgets);

// Dials from the roomiest to the tightest: what choose_dials tries in turn.
std::vector<Dials> dial_ladder(const spec::ModelSpec& spec, std::int64_t tokens);

// The first of the ladder that fits. Throws Error(kOverBudget) naming the budgets, the tightest plan's needs
// and its largest holders: that plan's bytes are the smallest budgets that work.
Dials choose_dials(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                   SessionOptions options, bool device_is_host, const FixedBytes& fixed,
                   const Budgets& budgets);

// For explicit dials: throws the same refusal when they do not fit.
void require_fit(const checkpoint::Checkpoint& checkpoint, const spec::Layout& layout,
                 const SessionOptions& options, bool device_is_host, const FixedBytes& fixed,
                 const Budgets& budgets);

}  // namespace h3s::exec
