// `h3stream verify`: our results against stored ones, and every plan against the first.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/select.h"
#include "checkpoint/checkpoint.h"
#include "mem/accountant.h"
#include "spec/layout.h"
#include "verify/compare.h"
#include "verify/plans.h"

namespace h3s::verify {

struct PlanResult {
  NamedPlan plan;
  bool equal = true;
  std::string difference;  // against the first plan; empty when equal
  std::array<std::int64_t, mem::kNumSpaces> peak_bytes{};
};

struct Report {
  std::string path;
  std::string skipped;  // why nothing was checked; empty: it was
  std::vector<Check> checks;
  std::vector<PlanResult> plans;
  bool ok() const;
};

// Called with a line of what is being done, for progress.
using Progress = std::function<void(const std::string&)>;

// One reference file under each plan; the first plan's results are compared with the stored ones by the rules
// of its compute type and format. Throws Error for files that are not reference files.
Report verify_golden(const std::string& path, const std::vector<NamedPlan>& plans, const Progress& progress,
                     const backend::DeviceChoice& device = {});

// Sizes, seed and sigma of a random job on a real checkpoint.
struct RandomJob {
  spec::JobSpec job{.text_len = 11, .latent_t = 5, .latent_h = 6, .latent_w = 10, .audio_t = 13};
  std::uint64_t seed = 0;
  float sigma = 0.7f;
  DType compute = DType::kBF16;
};

// Plan equality alone.
Report verify_model(const checkpoint::Checkpoint& checkpoint, const RandomJob& job,
                    const std::vector<NamedPlan>& plans, const Progress& progress,
                    const backend::DeviceChoice& device = {});

}  // namespace h3s::verify
