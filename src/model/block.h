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

// Rows [token0, token0 + rows) of the sequence.
struct Chunk {
  std::int64_t token0 = 0, rows = 0;
  bool modulate = false;
  kernels::Modulation modulation;  // table [.., 6D]; token0 is set from the chunk
  const void* rope = nullptr;      // [rows, 96] C, or null
};

// Heads [first, first + count) and where their q, k, v go: each [count][..][128] with head_stride elements;
// the pointer is that of the chunk's first row. Null: not wanted.
struct HeadTargets {
  std::int64_t first = 0, count = 0;
  void* q = nullptr;
  void* k = nullptr;
  void* v = nullptr;
  std::int64_t q_head_stride = 0, kv_head_stride = 0;
};

// Scratch of project_heads for `rows` rows and `heads` heads, `parts` of {q, k, v}.
struct ProjectScratch {
  void* h = nullptr;    // [rows, D]
  void* qkv = nullptr;  // [rows, parts * heads * 128]
  QuantScratch quant;   // [rows, D]
  void take(Carver& carver, const spec::ModelSpec& spec, DType compute, std::int64_t rows, std::int64_t heads,
            std::int64_t parts);
};

// h = modulate(norm1(x)); the wanted rows of qkv_proj; q/k norm and rope into the attention layout. x [rows,
// D] dense.
void project_heads(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                   const BlockWeights& weights, const Chunk& chunk, const void* x, const HeadTargets& targets,
                   const ProjectScratch& scratch);

// Scratch of attention_out_and_mlp for `rows` rows.
struct MlpScratch {
  void* h = nullptr;        // [rows, D]
  void* out = nullptr;      // [rows, D]
  void* gate_up = nullptr;  // [rows, 2F]
  void* act = nullptr;      // [rows, F], floating-point fc2 only
  QuantScratch quant;       // [rows, max(I, D, F)]
  void take(Carver& carver, const spec::ModelSpec& spec, DType compute, std::int64_t rows);
};

// x += gate * out_proj(o); x += gate * mlp(modulate(norm2(x))). o [rows, I] dense, x [rows, D] dense, in
// place.
void attention_out_and_mlp(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                           const BlockWeights& weights, const Chunk& chunk, const void* o, void* x,
                           const MlpScratch& scratch);

}  // namespace h3s::model
