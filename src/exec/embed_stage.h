// Fills the residual stream: refined text, condition and reference rows, target audio and video rows.
#pragma once

#include "exec/memory.h"
#include "exec/row_store.h"
#include "exec/sequence.h"
#include "exec/session.h"
#include "exec/staging.h"
#include "model/weights.h"
#include "spec/layout.h"

namespace h3s::exec {

class EmbedStage {
 public:
  EmbedStage(Context context, const spec::ModelSpec& spec, DType compute, std::int64_t chunk_rows,
             std::int64_t low_rank_row_bytes);

  // video_in, audio_in as in Session::forward. Patch projections run in f32 and round once to the compute
  // type.
  void run(const spec::Layout& layout, const model::GlobalWeights& weights, const Conditioning& conditioning,
           const float* video_in, const float* audio_in, RowStore& refined, RowStore& x, void* scratch);

  // Device scratch run() needs.
  static std::int64_t scratch_bytes(const spec::ModelSpec& spec, std::int64_t chunk_rows,
                                    std::int64_t low_rank_row_bytes);

 private:
  struct Source;
  void copy_text(const spec::Segment& segment, RowStore& refined, RowStore& x);
  void project_rows(const spec::Segment& segment, const Source& source, const model::LinearWeight& weight,
                    RowStore& x, void* scratch);

  Context context_;
  const spec::ModelSpec& spec_;
  DType compute_;
  std::int64_t chunk_rows_, low_rank_row_bytes_;
  UploadRing rows_;
};

}  // namespace h3s::exec
