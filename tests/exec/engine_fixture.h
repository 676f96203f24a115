// A small network on disk and small jobs: what the tests of the executor share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "exec/session.h"
#include "reference/reference_model.h"
#include "verify/captured_run.h"

namespace h3s::test {

inline constexpr std::uint64_t kSeed = 20261130;

// hidden 256, 3 heads of 128 (so that groups of 2 leave one over), 2 blocks, 1 refiner block.
spec::ModelSpec small_spec(bool curve = true);

// A synthetic checkpoint in a temporary file, removed with the object.
class CheckpointFile {
 public:
  CheckpointFile(const spec::ModelSpec& spec, checkpoint::WeightFormat format,
                 const std::string& prefix = "");
  CheckpointFile(const spec::ModelSpec& spec, bool int8, const std::string& prefix = "")
      : CheckpointFile(spec,
                       int8 ? checkpoint::WeightFormat::kInt8Tensorwise : checkpoint::WeightFormat::kBF16,
                       prefix) {}
  ~CheckpointFile();
  CheckpointFile(const CheckpointFile&) = delete;
  CheckpointFile& operator=(const CheckpointFile&) = delete;
  const std::string& path() const { return path_; }
  const checkpoint::Checkpoint& get() const { return *checkpoint_; }

 private:
  std::string path_;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
};

// 17 text, 2 x 13 audio, 5 x 7 x 8 video rows: 323 tokens, no chunk size of the plan list divides it.
spec::JobSpec ragged_job();

// bf16-valued random inputs of the right sizes, condition rows included.
verify::JobInputs random_inputs(const spec::ModelSpec& spec, const spec::JobSpec& job);

// A job on a checkpoint, ready to run.
struct SmallJob {
  spec::JobSpec job;
  spec::Layout layout;
  verify::JobInputs inputs;
  SmallJob(const spec::ModelSpec& spec, const spec::JobSpec& job_spec)
      : job(job_spec), layout(job_spec), inputs(random_inputs(spec, job_spec)) {}
  verify::CaptureJob capture_job(const checkpoint::Checkpoint& checkpoint, DType compute) const {
    return {checkpoint, layout, inputs, {.visual_aug = 1, .audio_aug = 1}, 0.7f, compute, {}};
  }
  exec::Conditioning conditioning() const {
    return {inputs.text.data(), inputs.visual_rows.data(), inputs.audio_rows.data()};
  }
};

}  // namespace h3s::test
