// One sampling run made ready: what its inputs file and its settings say, in memory.
#pragma once

#include <cstdint>

#include "mem/accountant.h"
#include "sample/condition.h"
#include "sample/inputs.h"
#include "sample/sampler.h"
#include "sample/schedules.h"
#include "sample/state.h"

namespace h3s::sample {

// Everything but the files that the bits of a run depend on.
struct JobOptions {
  std::uint64_t seed = 0;
  Scheduler scheduler = Scheduler::kSimple;
  std::int64_t steps = 8;
  double denoise = 1.0;
  DType compute = DType::kBF16;
  spec::TimestepOptions
      timesteps;  // shifts and condition timesteps; both also shape schedule and condition noise

  ScheduleOptions schedule() const;
  ConditionOptions conditions() const;
};

// By name, as state and output files hold them.
Settings describe(const JobOptions& options);

class Job {
 public:
  // What the sampler will run, and every check of inputs against options: needs no memory of size. Throws
  // Error(kInvalidArgument, kBadFile).
  static SamplerOptions check(const Inputs& inputs, const JobOptions& options);

  // Converts text, conditions and initial latents and draws the noise; the sampler stands before step 0. With
  // denoise below 1 the inputs must hold initial latents. `resuming`: the noise is left out, load_state()
  // comes next. Throws as check, and Error(kOverBudget).
  Job(const Inputs& inputs, const JobOptions& options, bool resuming, mem::Accountant& accountant);

  // Host bytes the constructor peaks at, and what the Job holds afterwards, exactly.
  struct HostBytes {
    std::int64_t held = 0, peak = 0;
  };
  static HostBytes host_bytes(const Inputs& inputs, const JobOptions& options, bool resuming);

  // The peak for a layout whose inputs file is still to be made: text, conditions with their noise, no
  // initial latents. Exact where the target's latent sides are even.
  static std::int64_t host_bytes(const spec::ModelSpec& spec, const spec::Layout& layout);

  EulerSampler& sampler() { return sampler_; }
  const float* text() const { return text_.as<float>(); }                // [text_len, text_dim]
  const float* visual_rows() const { return rows_.visual.as<float>(); }  // null when there are none
  const float* audio_rows() const { return rows_.audio.as<float>(); }    // null when there are none

 private:
  Job(const Inputs& inputs, const JobOptions& options, SamplerOptions sampler, bool resuming,
      mem::Accountant& accountant);
  void start(const Inputs& inputs, std::uint64_t seed, mem::Accountant& accountant);

  mem::Buffer text_;
  ConditionRows rows_;
  EulerSampler sampler_;
};

}  // namespace h3s::sample
