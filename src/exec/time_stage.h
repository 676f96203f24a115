// Timesteps to modulation: the time embedding once a step, the AdaLN projection once a block.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/memory.h"
#include "exec/staging.h"
#include "model/carver.h"
#include "model/linear.h"
#include "spec/layout.h"

namespace h3s::exec {

class TimeStage {
 public:
  TimeStage(Context context, const spec::ModelSpec& spec, DType compute, std::int64_t low_rank_row_bytes);

  // Embeds the unique timesteps of a step. `curve_table` [grid, time_dim] is host memory, null in the full
  // form.
  void embed(const model::GlobalWeights& weights, const float* curve_table, const spec::Timesteps& timesteps);

  // The table [3 x timesteps, 6D] of a block and the segments that index it; valid until the next call.
  kernels::Modulation modulation(const model::LinearWeight& adaln);

  // shift and scale rows of the final layer for one timestep, f32 [D] each.
  struct FinalRow {
    const float* shift = nullptr;
    const float* scale = nullptr;
  };
  void project_final(const model::LinearWeight& adaln);
  FinalRow final_row(std::int64_t timestep_idx) const;

  // t_emb of the step as f32 values [timesteps, time_dim]; waits for the device.
  std::vector<float> time_embedding();

 private:
  // Distinct timesteps of a step: video, audio, visual condition, audio condition.
  static constexpr std::int64_t kMaxTimesteps = 4;
  struct Buffers {
    float* hidden = nullptr;      // [4, time_hidden]
    void* t_emb = nullptr;        // [4, time_dim]: f32 in the curve form, C in the full form
    void* input = nullptr;        // [4, time_dim]: what AdaLN projects
    float* adaln = nullptr;       // [4, 18D]
    void* table = nullptr;        // [12, 6D] C
    float* final_rows = nullptr;  // [4, 2D]
    float* peak = nullptr;        // of `input`, for an AdaLN weight that needs it
    model::QuantScratch quant;    // [4, max(time_dim, time_hidden)]
    void take(model::Carver& carver, const spec::ModelSpec& spec, DType compute,
              std::int64_t low_rank_row_bytes);
  };
  void project(const model::LinearWeight& weight, float* y);
  DType embedding_dtype() const { return spec_.curve() ? DType::kF32 : compute_; }

  Context context_;
  const spec::ModelSpec& spec_;
  DType compute_;
  UploadRing upload_;
  mem::Buffer device_, pinned_;
  Buffers buffers_;
  std::int64_t count_ = 0;  // timesteps of this step
  std::vector<kernels::ModSegment> segments_;
};

}  // namespace h3s::exec
