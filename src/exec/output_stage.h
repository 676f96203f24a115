// The final layer on the two target segments, back to latents.
#pragma once

#include "exec/memory.h"
#include "exec/row_store.h"
#include "exec/time_stage.h"
#include "model/carver.h"
#include "model/linear.h"
#include "spec/layout.h"

namespace h3s::exec {

class OutputStage {
 public:
  OutputStage(Context context, const spec::ModelSpec& spec, DType compute, std::int64_t chunk_rows,
              std::int64_t low_rank_row_bytes);

  // Final norm and modulation, f32 heads, unpatchify with crop; rounded to the compute type and negated (the
  // network predicts the opposite of the sampler's velocity). Outputs as in Session::forward; complete on
  // return.
  void run(const spec::Layout& layout, const spec::Timesteps& timesteps, const model::GlobalWeights& weights,
           TimeStage& time, RowStore& x, void* scratch, float* video_out, float* audio_out);

  // Device scratch run() needs.
  static std::int64_t scratch_bytes(const spec::ModelSpec& spec, std::int64_t chunk_rows,
                                    std::int64_t low_rank_row_bytes);

 private:
  struct Scratch;
  template <typename Unpack>
  void run_segment(const spec::Segment& segment, const model::LinearWeight& head, TimeStage::FinalRow row,
                   const float* norm, RowStore& x, void* scratch, Unpack unpack);

  Context context_;
  const spec::ModelSpec& spec_;
  DType compute_;
  std::int64_t chunk_rows_, low_rank_row_bytes_;
  mem::Buffer rows_;  // pinned: [chunk_rows, columns] f32
};

}  // namespace h3s::exec
