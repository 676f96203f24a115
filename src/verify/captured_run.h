// One forward with everything a reference file records.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "backend/select.h"
#include "checkpoint/checkpoint.h"
#include "exec/session.h"
#include "mem/accountant.h"
#include "verify/golden.h"
#include "verify/plans.h"

namespace h3s::verify {

struct Capture {
  std::map<std::string, std::vector<float>> tensors;  // embed, block0.., video_out, audio_out, t_emb
  spec::Timesteps timesteps;
  std::array<std::int64_t, mem::kNumSpaces> peak_bytes{};
};

// `rows`: which rows of embed and blocks to keep; empty: all.
struct CaptureJob {
  const checkpoint::Checkpoint& checkpoint;
  const spec::Layout& layout;
  const JobInputs& inputs;
  spec::TimestepOptions timesteps;
  float sigma = 0;
  DType compute = DType::kBF16;
  std::vector<std::int64_t> rows;
  backend::DeviceChoice device = {};  // its threads: the plan's
};

Capture run_captured(const CaptureJob& job, const NamedPlan& plan);

// Empty when every tensor of the two is equal bit for bit; else the first difference in words.
std::string first_difference(const Capture& a, const Capture& b);

}  // namespace h3s::verify
