// Text states to refined text rows: condition_proj, the token refiner, its final norm. Once per sampling run.
#pragma once

#include "exec/memory.h"
#include "exec/row_store.h"
#include "exec/sequence.h"
#include "exec/staging.h"
#include "exec/weight_loader.h"
#include "exec/weight_ring.h"
#include "exec/weight_slot.h"

namespace h3s::exec {

// Holds its own sequence of text rows while it lives; construction allocates, run() computes.
class ConditioningStage {
 public:
  ConditioningStage(Context context, const spec::ModelSpec& spec, DType compute, std::int64_t text_len,
                    const Dials& dials, const WeightLoader& loader);

  // text [text_len, text_dim] f32 host memory, rounded to the compute type; the refined rows go to `refined`
  // [text_len, D] C.
  void run(const WeightLoader& loader, WeightRing& ring, const float* text, RowStore& refined);

 private:
  void load(const WeightLoader& loader);
  template <typename Work>
  void for_text_chunks(const float* text, Work work);
  void project_text(const float* text);
  void normalise(RowStore& refined);

  Context context_;
  const spec::ModelSpec& spec_;
  DType compute_;
  Sequence sequence_;
  std::int64_t low_rank_row_bytes_;
  UploadRing text_rows_;
  WeightSlot slot_;
  model::ConditioningWeights weights_;
  Drain drain_;
};

}  // namespace h3s::exec
