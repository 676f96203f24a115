// Everything a session holds, allocated in one place so that a dry run allocates exactly the same.
#pragma once

#include <optional>

#include "exec/conditioning_stage.h"
#include "exec/embed_stage.h"
#include "exec/output_stage.h"
#include "exec/sequence.h"
#include "exec/session.h"
#include "exec/time_stage.h"
#include "exec/weight_loader.h"
#include "exec/weight_ring.h"
#include "exec/weight_slot.h"

namespace h3s::exec {

struct SessionState {
  SessionState(Context context, const WeightLoader& loader, const spec::Layout& layout,
               const SessionOptions& options);

  // The refiner's own sequence: lives during set_conditioning() only.
  ConditioningStage make_conditioning_stage() const;

  Context context;
  const checkpoint::Checkpoint& checkpoint;
  const spec::ModelSpec& spec;
  const spec::Layout& layout;
  SessionOptions options;
  mem::Buffer merge_memory;  // empty: no LoRAs to merge
  WeightLoader loader;       // with merge_memory
  WeightSlot globals_slot;
  mem::Buffer curve_table;
  WeightRing ring;
  Sequence sequence;
  RowStore refined;  // [text_len, D] C
  TimeStage time;
  EmbedStage embed;
  OutputStage output;
};

}  // namespace h3s::exec
