// A sequence of tokens passing through blocks by one of the schedules.
//
//   resident     x, K and V of all heads on the device; per query chunk: q, attention, out_proj, MLP
//   head-groups  x and q, K, V of g heads on the device; O of each group goes to its home; then out_proj and
//                MLP by rows
//   flat         as head-groups, with x at home in pinned memory: device bytes grow by g x 3 x 128 elements a
//                token only, g x 5 x 128 when projecting ahead
//
// Projecting ahead: flat reads all of x once for each head group, and projecting a chunk takes the device far
// less time than bringing it there. So the q, k, v of the next group are projected between the query chunks
// of the current one, whose attention gives the uploads time. The rows of q that have been attended are
// overwritten in place; K and V need a second pair of buffers.
//
// Keeping the projection input: each head group projects the same normalised (and quantised) rows. The first
// group keeps them where x is at home, the others read them instead of x: no norm, and half of the bytes when
// quantised.
//
// A linear whose input has one scale for all rows (nvfp4 without input_scale) waits until all rows have been
// seen: O is kept whole in every schedule, and the end of a block becomes passes: out_proj and residual; for
// fc2 its input once for the peak; the MLP.
//
// The schedule decides where bytes are and when; every op sees the same rows and computes the same values.
#pragma once

#include <cstdint>
#include <optional>

#include "exec/dials.h"
#include "exec/memory.h"
#include "exec/phase.h"
#include "exec/row_store.h"
#include "exec/staging.h"
#include "exec/weight_ring.h"
#include "model/block.h"
#include "spec/layout.h"

namespace h3s::exec {

// What a block needs beside the sequence: its weights and, where it modulates, a table.
struct BlockContext {
  const model::BlockWeights& weights;
  kernels::Modulation modulation = {};
  BlockPhases phases = {};
  WeightRing* arriving = nullptr;  // where the next block's weights come in; null: none do

  // Called before each chunk.
  void let_weights_arrive() const {
    if (arriving != nullptr) arriving->poll();
  }
};

// The dials as they apply to a sequence: chunks clipped to it, no more heads than there are, below min_tokens
// resident and unchunked. Throws Error(kInvalidArgument) for a negative dial.
Dials effective_dials(Dials dials, const spec::ModelSpec& spec, std::int64_t tokens);

class Sequence {
 public:
  struct Needs {
    bool rotates = false;
    bool input_peaks = false;               // some block has BlockWeights::needs_peaks()
    std::int64_t extra_scratch_bytes = 0;   // what stages outside the blocks need at least; see scratch()
    std::int64_t kept_input_row_bytes = 0;  // of the blocks to come; 0: dials that keep inputs are not used
    std::int64_t low_rank_row_bytes = 0;    // the most of any linear: model::LowRank
  };
  Sequence(Context context, const spec::ModelSpec& spec, DType compute, std::int64_t tokens,
           const Dials& dials, const Needs& needs);

  std::int64_t tokens() const { return tokens_; }
  const Dials& dials() const { return dials_; }  // as they apply: chunks clipped to the sequence
  RowStore& x() { return x_; }                   // [tokens, D] C

  // Fills the rotation of every row, once, for a sequence that rotates. `inv_freq` [16] on the device.
  void prepare_rotation(const spec::Layout& layout, const float* inv_freq);

  // One block over all rows: x in place.
  void run_block(const BlockContext& block);

  // Device scratch, free for others outside run_block().
  void* scratch() const { return scratch_.data(); }
  // Device memory for one peak, free for others outside run_block(); null without Needs::input_peaks.
  float* spare_peak() const { return peaks_.as<float>(); }

 private:
  struct KeyValues {
    mem::Buffer k, v;  // [heads attended][tokens][128] C
  };

  void run_resident(const BlockContext& block);
  void run_grouped(const BlockContext& block);
  // From x; the first and the later groups of a block may leave and find the input in the kept rows.
  enum class Input { kMake, kMakeAndKeep, kKept };
  void project(const BlockContext& block, std::int64_t start, std::int64_t rows, Input from,
               const model::HeadTargets& targets, model::Carver carver);
  // Heads [first, first + count) and where their keys and values are.
  struct HeadGroup {
    std::int64_t first = 0, count = 0;
    const KeyValues* kv = nullptr;
  };
  HeadGroup group_at(std::int64_t first_head) const;
  void project_group(const BlockContext& block, const HeadGroup& group, std::int64_t start,
                     std::int64_t rows);
  void attend_group(const BlockContext& block, std::int64_t head);
  void attend_queries(const BlockContext& block, const HeadGroup& group, std::int64_t start,
                      std::int64_t rows);
  void attend(std::int64_t heads, const void* q, std::int64_t q_head_stride, const KeyValues& kv,
              std::int64_t rows, void* o, std::int64_t o_token_stride);
  void resident_queries(const BlockContext& block, std::int64_t start, std::int64_t rows);
  void finish_rows(const BlockContext& block, std::int64_t start, std::int64_t rows, const void* o,
                   model::Carver carver);
  void finish_all(const BlockContext& block);
  template <typename Work>
  void in_mlp_pieces(const model::Chunk& chunk, void* x, Work work);
  void finish_attention(const BlockContext& block, const model::Chunk& chunk, const void* o, void* x,
                        const model::MlpScratch& scratch);
  void finish_mlp(const BlockContext& block, const model::Chunk& chunk, void* x,
                  const model::MlpScratch& scratch);
  void finish_all_with_peaks(const BlockContext& block);
  void measure_qkv_inputs(const BlockContext& block);
  void measure_attended(const BlockContext& block, std::int64_t start, std::int64_t rows,
                        const HeadGroup& group, const void* o, std::int64_t stride);
  model::Chunk chunk_of(const BlockContext& block, std::int64_t start, std::int64_t rows) const;
  void* head_row(const mem::Buffer& buffer, std::int64_t row) const;
  std::int64_t scratch_bytes() const;

  Context context_;
  const spec::ModelSpec& spec_;
  DType compute_;
  std::int64_t tokens_;
  Dials dials_;
  std::int64_t low_rank_row_bytes_;
  RowStore x_;
  std::optional<RowStore> o_;     // grouped schedules, and with peaks_: [tokens, I] C
  std::optional<RowStore> kept_;  // [tokens, model::kept_input_row_bytes]
  mem::Buffer q_;                 // grouped schedules: [heads of a group][tokens][128] C
  KeyValues kv_[2];               // the second one when projecting ahead
  mem::Buffer scratch_;
  mem::Buffer peaks_;  // InputPeaks, where some block needs them
  std::optional<UploadRing> positions_;
  std::optional<RowStore> rotation_;  // [tokens, 96] C: cos and sin of a token's position, where x is at home
};

}  // namespace h3s::exec
