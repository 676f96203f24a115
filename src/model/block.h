// One transformer block on a chunk of rows, as a sequence of op calls.
//
// DiT blocks modulate and rotate; token-refiner blocks do neither (Chunk::modulate false, rope null).
// Rounding points: every linear, the norm, gain, shift, the residual add and attention each round once to the
// compute type.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "model/carver.h"
#include "model/linear.h"
#include "model/weights.h"
#include "spec/model_spec.h"

namespace h3s::model {

// Device memory for the largest magnitudes of the inputs of a block's linears over the whole sequence.
struct InputPeaks {
  float qkv, out, fc1, fc2;
};

// Rows [token0, token0 + rows) of the sequence.
struct Chunk {
  std::int64_t token0 = 0, rows = 0;
  bool modulate = false;
  kernels::Modulation modulation;  // table [.., 6D]; token0 is set from the chunk
  const void* rope = nullptr;      // [rows, 96] C, or null
  InputPeaks* peaks = nullptr;     // where BlockWeights::needs_peaks()
  Chunk piece(std::int64_t first, std::int64_t count,
              DType compute) const;  // rows [first, first + count) of it
};

// Heads [first, first + count) and where their q, k, v go: each [count][..][128] with head_stride elements;
// the pointer is that of the chunk's first row. Null: not
// wanted; what is wanted is a run of q, k, v.
struct HeadTargets {
  std::int64_t first = 0, count = 0;
  void* q = nullptr;
  void* k = nullptr;
  void* v = nullptr;
  std::int64_t q_head_stride = 0, kv_head_stride = 0;
  HeadTargets from_row(std::int64_t row, std::int64_t head_dim, DType compute) const;
};

// Where the input of qkv_proj is made: h always; codes and scales only where the weight is quantised.
struct ProjectionInputSpace {
  void* h = nullptr;   // [rows, D]
  QuantScratch quant;  // [rows, D]
  static ProjectionInputSpace take(Carver& carver, const spec::ModelSpec& spec, DType compute,
                                   std::int64_t rows, std::int64_t low_rank_row_bytes);
  ProjectionInputSpace from_row(std::int64_t first, const spec::ModelSpec& spec, DType compute,
                                const LinearWeight& qkv) const;
};

// modulate(norm1(x)), ready for qkv_proj and any slice of it. x [rows, D] dense.
LinearInput projection_input(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                             const BlockWeights& weights, const Chunk& chunk, const void* x,
                             const ProjectionInputSpace& space);

// That input kept for the head groups after the first: bytes of a row, and where `rows` of them lie from
// `base`. What a quantised weight does not read (h) is not kept; it stays in `scratch`. What a LowRank adds
// comes from h and is kept with it.
std::int64_t kept_input_row_bytes(const spec::ModelSpec& spec, DType compute, const LinearWeight& qkv);
ProjectionInputSpace kept_input_space(const spec::ModelSpec& spec, const LinearWeight& qkv, std::int64_t rows,
                                      void* base, const ProjectionInputSpace& scratch);

// The wanted rows of qkv_proj on its input; q/k norm and rope into the attention layout.
//   qkv [rows, parts * count * 128] C: scratch, `parts` of {q, k, v} being wanted
void project_heads(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                   const BlockWeights& weights, const Chunk& chunk, const LinearInput& input,
                   const HeadTargets& targets, void* qkv);

// Scratch of attention_out and mlp for `rows` rows.
struct MlpScratch {
  void* h = nullptr;        // [rows, D]
  void* out = nullptr;      // [rows, D]
  void* gate_up = nullptr;  // [rows, max(2F, I)]: before fc1, the quantised attention output
  void* act = nullptr;      // [rows, F], where fc2 is floating-point or has a LowRank
  QuantScratch quant;       // [rows, max(I, D, F)]
  void take(Carver& carver, const spec::ModelSpec& spec, DType compute, std::int64_t rows,
            std::int64_t low_rank_row_bytes);
};

// x += gate * out_proj(o). o [rows, I] dense, x [rows, D] dense, in place: by the last op, and by no other.
void attention_out(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                   const BlockWeights& weights, const Chunk& chunk, const void* o, void* x,
                   const MlpScratch& scratch);

// x += gate * mlp(modulate(norm2(x))), x as above.
void mlp(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute, const BlockWeights& weights,
         const Chunk& chunk, void* x, const MlpScratch& scratch);

// What a chunk adds to its peaks; nothing where the weight needs none. The first rows of the sequence start
// a peak. fc2's input can be measured when the peak of fc1's is complete.
void measure_qkv_input(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                       const BlockWeights& weights, const Chunk& chunk, const void* x,
                       const ProjectionInputSpace& space);
void measure_fc1_input(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                       const BlockWeights& weights, const Chunk& chunk, const void* x,
                       const MlpScratch& scratch);
void measure_fc2_input(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                       const BlockWeights& weights, const Chunk& chunk, const void* x,
                       const MlpScratch& scratch);

}  // namespace h3s::model
