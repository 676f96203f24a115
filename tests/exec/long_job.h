// One forward of a planned job as `h3stream run` does it, timed block by block, with what a recompute of its
// last block needs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/select.h"
#include "base/float16.h"
#include "checkpoint/checkpoint.h"
#include "exec/footprint.h"
#include "mem/accountant.h"
#include "plan/plan.h"
#include "sample/inputs.h"
#include "spec/layout.h"

namespace h3s::test {

struct LongJobOptions {
  backend::DeviceChoice where;
  exec::Budgets budgets;
  std::string calibration;  // file; empty: as `h3stream run`
};

// The last block of a forward: all rows of its input, some of its output, both bf16.
struct CapturedBlock {
  std::int64_t block_idx = 0;
  spec::Timesteps timesteps;
  mem::Buffer input;               // [tokens, D], host
  std::vector<std::int64_t> rows;  // which of the output, ascending
  std::vector<BF16> output;        // [rows, D]
};

class LongJob {
 public:
  // Reads and plans; runs nothing. Throws as plan::require_plan. `checkpoint` must live as long.
  LongJob(const LongJobOptions& options, const checkpoint::Checkpoint& checkpoint,
          const std::string& inputs_path);

  const spec::Layout& layout() const { return layout_; }
  const plan::Plan& plan() const { return plan_; }
  nlohmann::json plan_json() const;

  // `keep` holds the captured input: its own books, since the run's are held to the budgets. Adds what was
  // measured to `figures`.
  CapturedBlock run(const std::vector<std::int64_t>& rows, mem::Accountant& keep, nlohmann::json& figures);

 private:
  void plan_run();

  LongJobOptions options_;
  const checkpoint::Checkpoint& checkpoint_;
  sample::Inputs inputs_;
  spec::Layout layout_;
  plan::Plan plan_;
  exec::Budgets budgets_;
  std::int64_t context_bytes_ = 0;
};

// Rows worth looking at, ascending: ends and middle of every segment, ends of the last chunks, rows on both
// sides of offsets of 2^31 and 2^32 elements or bytes in x and O, and others between, `count` in all.
std::vector<std::int64_t> sample_rows(const spec::Layout& layout, const spec::ModelSpec& spec,
                                      const exec::Dials& dials, std::int64_t count);

// Seconds that attention alone takes for a block of `tokens`: calls of the plan's shape, back to back on
// made-up values, for a second or so, scaled to all queries and heads. Bf16.
double attention_alone_seconds(kernels::Backend& backend, mem::Accountant& accountant,
                               const spec::ModelSpec& spec, std::int64_t tokens, const exec::Dials& dials);

}  // namespace h3s::test
