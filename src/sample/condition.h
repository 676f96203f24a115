// Rows of the condition and reference segments, with their noise.
#pragma once

#include <cstdint>

#include "mem/accountant.h"
#include "sample/inputs.h"

namespace h3s::sample {

struct ConditionOptions {
  std::uint64_t seed = 0;  // of the run
  double visual_aug =
      spec::kVisualConditionTimestep;  // rows = aug rows + (1 - aug) noise; 1 or more: no noise
  double audio_aug = spec::kAudioConditionTimestep;
};

// float32 in Space::kHost, segments one after another in packed order; no memory where there are no such
// segments.
struct ConditionRows {
  mem::Buffer visual;  // [rows, 4 x video channels]
  mem::Buffer audio;   // [rows, audio channels]
};

// Every condition draws the same noise from its beginning: visual ones from a generator of `seed`, audio ones
// from one of seed + 1. aug and 1 - aug are narrowed to float32; two products and their sum round once each.
// Throws Error(kOverBudget).
ConditionRows make_condition_rows(const Inputs& inputs, const ConditionOptions& options,
                                  mem::Accountant& accountant);

// Host bytes that make_condition_rows leaves behind, and its peak: one condition's latent or noise on top.
struct ConditionBytes {
  std::int64_t held = 0, peak = 0;
};
ConditionBytes condition_bytes(const Inputs& inputs, const ConditionOptions& options);

// The same from a layout: every condition counted with noise.
ConditionBytes condition_bytes(const spec::ModelSpec& spec, const spec::Layout& layout);

}  // namespace h3s::sample
