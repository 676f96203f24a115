// Rows of a block's output recomputed in float32, for sequences that are too long to recompute whole.
//
// Keys and values are projected from every row of the block's input, as the session held it; queries,
// out_proj and MLP are those of the rows asked for alone. Weights are dequantised and nothing is rounded to
// bf16 or to codes, so what differs from the session's rows is what its rounding and its quantised
// activations did.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/float16.h"
#include "checkpoint/checkpoint.h"
#include "exec/memory.h"
#include "exec/staging.h"
#include "exec/time_stage.h"
#include "exec/weight_loader.h"
#include "exec/weight_slot.h"
#include "model/block.h"
#include "spec/layout.h"

namespace h3s::test {

struct BlockInput {
  const checkpoint::Checkpoint& checkpoint;
  const spec::Layout& layout;
  const spec::Timesteps& timesteps;
  std::int64_t block_idx = 0;
  const BF16* x = nullptr;  // [tokens, D], host memory
};

class BlockRecompute {
 public:
  // `input` and what it refers to must live as long. `kv_bytes` of device memory hold keys and values of as
  // many heads at a time as fit, of one at least; x passes once for each such group of heads.
  BlockRecompute(kernels::Backend& backend, mem::Accountant& accountant, const BlockInput& input,
                 std::int64_t kv_bytes);

  // Rows `rows`, ascending, of the block's output, [rows, D]; once for each of `key_counts`, with attention
  // over the first so many rows of the sequence.
  std::vector<std::vector<float>> run(const std::vector<std::int64_t>& rows,
                                      const std::vector<std::int64_t>& key_counts);

 private:
  class Rows;
  void load();
  void project_keys(std::int64_t first, std::int64_t heads);
  const void* rotation_of(std::int64_t start, std::int64_t rows);

  exec::Context context_;
  BlockInput input_;
  const spec::ModelSpec& spec_;
  exec::WeightLoader loader_;
  exec::WeightSlot globals_slot_, block_slot_;
  exec::TimeStage time_;
  std::int64_t group_heads_;
  exec::UploadRing x_, positions_;
  mem::Buffer k_, v_;     // [heads of a group][tokens][128]
  mem::Buffer rotation_;  // [rows of a chunk, 96]
  mem::Buffer scratch_;   // of a chunk
  model::BlockWeights weights_;
  kernels::Modulation modulation_;
  const float* inv_freq_ = nullptr;
  exec::Drain drain_{context_};
};

}  // namespace h3s::test
