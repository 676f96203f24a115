#include "model/block.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "base/bytes.h"
#include "ops/ops.h"

namespace h3s::model {
namespace {

// Columns of a modulation row, in units of D.
enum Part : std::int64_t { kShiftMsa, kGainMsa, kGateMsa, kShiftMlp, kGainMlp, kGateMlp };

std::int64_t element_bytes(DType dtype) {
  return static_cast<std::int64_t>(dtype_size(dtype));
}

kernels::Modulation modulation_at(const Chunk& chunk) {
  kernels::Modulation m = chunk.modulation;
  m.token0 = chunk.token0;
  return m;
}

float* peak(const Chunk& chunk, float InputPeaks::*member) {
  return chunk.peaks == nullptr ? nullptr : &(chunk.peaks->*member);
}

void norm(kernels::Backend& backend, DType compute, const Chunk& chunk, const void* x, const float* weight,
          std::int64_t d, Part gain, Part shift, void* y) {
  ops::rms_norm(backend, {.x = x,
                          .x_stride = d,
                          .weight = weight,
                          .y = y,
                          .dtype = compute,
                          .m = chunk.rows,
                          .c = d,
                          .modulate = chunk.modulate,
                          .modulation = modulation_at(chunk),
                          .gain_offset = gain * d,
                          .shift_offset = shift * d});
}

void add(kernels::Backend& backend, DType compute, const Chunk& chunk, void* x, const void* o, std::int64_t d,
         Part gate) {
  ops::gated_residual(backend, {.x = x,
                                .o = o,
                                .dtype = compute,
                                .m = chunk.rows,
                                .c = d,
                                .modulate = chunk.modulate,
                                .modulation = modulation_at(chunk),
                                .gate_offset = gate * d});
}

// silu(gate) * up, rounded to the compute type twice.
void activate(kernels::Backend& backend, DType compute, std::int64_t rows, std::int64_t f,
              const MlpScratch& scratch) {
  ops::swiglu(backend, {.gate_up = scratch.gate_up, .y = scratch.act, .dtype = compute, .m = rows, .f = f});
}

// The input of fc2; int8 ConvRot takes the product unrounded into its quantiser.
LinearInput swiglu_input(kernels::Backend& backend, const LinearWeight& fc2, DType compute,
                         const Chunk& chunk, const MlpScratch& scratch) {
  if (!fc2.fused_swiglu) {
    activate(backend, compute, chunk.rows, fc2.k, scratch);
    return prepare_input(backend, fc2, scratch.act, compute, fc2.k, chunk.rows,
                         scratch.quant.with_numbers(scratch.act), peak(chunk, &InputPeaks::fc2));
  }
  if (fc2.low_rank.rank > 0) {
    activate(backend, compute, chunk.rows, fc2.k, scratch);
    prepare_low_rank(backend, fc2, scratch.act, compute, fc2.k, chunk.rows, scratch.quant);
  }
  ops::swiglu_quantize_rows(backend, {.gate_up = scratch.gate_up,
                                      .dtype = compute,
                                      .rotate_group = fc2.rotate_group,
                                      .codes = scratch.quant.codes,
                                      .scale = scratch.quant.scale,
                                      .m = chunk.rows,
                                      .k = fc2.k});
  return {scratch.act, compute, fc2.k, chunk.rows, scratch.quant};
}

// gate_up = fc1(modulate(norm2(x)))
void gate_and_up(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                 const BlockWeights& weights, const Chunk& chunk, const void* x, const MlpScratch& scratch) {
  const std::int64_t d = spec.hidden;
  norm(backend, compute, chunk, x, weights.norm2, d, kGainMlp, kShiftMlp, scratch.h);
  const LinearInput normed =
      prepare_input(backend, weights.fc1, scratch.h, compute, d, chunk.rows,
                    scratch.quant.with_numbers(scratch.h), peak(chunk, &InputPeaks::fc1));
  linear(backend, weights.fc1, normed, scratch.gate_up, compute, 2 * spec.ffn);
}

// `data` so many rows further; null stays null.
template <typename T>
T* rows_on(T* data, std::int64_t rows, std::int64_t row_bytes) {
  if (data == nullptr) return nullptr;
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(data) + rows * row_bytes);
}

}  // namespace

Chunk Chunk::piece(std::int64_t first, std::int64_t count, DType compute) const {
  Chunk piece = *this;
  piece.token0 += first;
  piece.rows = count;
  piece.rope = rows_on(rope, first, 2 * kernels::kRopePairs * element_bytes(compute));
  return piece;
}

HeadTargets HeadTargets::from_row(std::int64_t row, std::int64_t head_dim, DType compute) const {
  HeadTargets targets = *this;
  for (void** part : {&targets.q, &targets.k, &targets.v})
    *part = rows_on(*part, row, head_dim * element_bytes(compute));
  return targets;
}

ProjectionInputSpace ProjectionInputSpace::from_row(std::int64_t first, const spec::ModelSpec& spec,
                                                    DType compute, const LinearWeight& qkv) const {
  return {rows_on(h, first, spec.hidden * element_bytes(compute)),
          {rows_on(quant.codes, first, spec.hidden), rows_on(quant.scale, first, sizeof(float)),
           rows_on(quant.numbers, first, spec.hidden * element_bytes(DType::kBF16)),
           rows_on(quant.low_rank, first, qkv.low_rank.row_bytes())}};
}

ProjectionInputSpace ProjectionInputSpace::take(Carver& carver, const spec::ModelSpec& spec, DType compute,
                                                std::int64_t rows, std::int64_t low_rank_row_bytes) {
  void* h = carver.take_bytes(rows * spec.hidden * element_bytes(compute));
  return {h, QuantScratch::take(carver, rows, spec.hidden, low_rank_row_bytes)};
}

LinearInput projection_input(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                             const BlockWeights& weights, const Chunk& chunk, const void* x,
                             const ProjectionInputSpace& space) {
  norm(backend, compute, chunk, x, weights.norm1, spec.hidden, kGainMsa, kShiftMsa, space.h);
  return prepare_input(backend, weights.qkv, space.h, compute, spec.hidden, chunk.rows,
                       space.quant.with_numbers(space.h), peak(chunk, &InputPeaks::qkv));
}

std::int64_t kept_input_row_bytes(const spec::ModelSpec& spec, DType compute, const LinearWeight& qkv) {
  const std::int64_t low_rank = qkv.low_rank.row_bytes();
  if (!qkv.quantised() && !qkv.float_code) return spec.hidden * element_bytes(compute) + low_rank;
  constexpr std::int64_t kGranule = 16;  // rows start where a tile copy may
  const std::int64_t code_bytes = element_bytes(qkv.quantised() ? DType::kI8 : DType::kBF16);
  return round_up(spec.hidden * code_bytes + low_rank + static_cast<std::int64_t>(sizeof(float)), kGranule);
}

ProjectionInputSpace kept_input_space(const spec::ModelSpec& spec, const LinearWeight& qkv, std::int64_t rows,
                                      void* base, const ProjectionInputSpace& scratch) {
  // Rows first whose bytes are a multiple of what tile copies need, scales last.
  auto* low_rank = static_cast<std::byte*>(base);
  std::byte* bytes = low_rank + rows * qkv.low_rank.row_bytes();
  const auto scales_after = [&](DType code) {
    return reinterpret_cast<float*>(bytes + rows * spec.hidden * element_bytes(code));
  };
  if (qkv.quantised())
    return {scratch.h, {reinterpret_cast<std::int8_t*>(bytes), scales_after(DType::kI8), nullptr, low_rank}};
  if (qkv.float_code) return {bytes, {nullptr, scales_after(DType::kBF16), nullptr, low_rank}};
  return {bytes, {nullptr, nullptr, nullptr, low_rank}};
}

void project_heads(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                   const BlockWeights& weights, const Chunk& chunk, const LinearInput& input,
                   const HeadTargets& targets, void* qkv) {
  const std::int64_t width = targets.count * spec.head_dim;
  const std::array<void*, 3> dst{targets.q, targets.k, targets.v};
  const auto wanted = [](const void* p) { return p != nullptr; };
  const std::int64_t parts = std::count_if(dst.begin(), dst.end(), wanted);
  const std::int64_t first = std::find_if(dst.begin(), dst.end(), wanted) - dst.begin();
  const LinearWeight rows =
      weights.qkv.slice(first * spec.inner() + targets.first * spec.head_dim, width, {parts, spec.inner()});
  linear(backend, rows, input, qkv, compute, parts * width);

  kernels::QkvArgs args{.src_stride = parts * width,
                        .q_weight = weights.q_norm,
                        .k_weight = weights.k_norm,
                        .rope = chunk.rope,
                        .dtype = compute,
                        .m = chunk.rows,
                        .heads = targets.count};
  const auto* column = static_cast<const std::byte*>(qkv);
  const auto part = [&](void* to, std::int64_t head_stride) -> kernels::QkvArgs::Part {
    if (to == nullptr) return {};
    return {std::exchange(column, column + width * element_bytes(compute)), to, head_stride};
  };
  args.q = part(targets.q, targets.q_head_stride);
  args.k = part(targets.k, targets.kv_head_stride);
  args.v = part(targets.v, targets.kv_head_stride);
  ops::qkv_norm_rope(backend, args);
}

void MlpScratch::take(Carver& carver, const spec::ModelSpec& spec, DType compute, std::int64_t rows,
                      std::int64_t low_rank_row_bytes) {
  h = carver.take_bytes(rows * spec.hidden * element_bytes(compute));
  out = carver.take_bytes(rows * spec.hidden * element_bytes(compute));
  gate_up = carver.take_bytes(rows * std::max(2 * spec.ffn, spec.inner()) * element_bytes(compute));
  act = carver.take_bytes(rows * spec.ffn * element_bytes(compute));
  quant =
      QuantScratch::take(carver, rows, std::max({spec.inner(), spec.hidden, spec.ffn}), low_rank_row_bytes);
}

void attention_out(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                   const BlockWeights& weights, const Chunk& chunk, const void* o, void* x,
                   const MlpScratch& scratch) {
  const LinearInput attended =
      prepare_input(backend, weights.out, o, compute, spec.inner(), chunk.rows,
                    scratch.quant.with_numbers(scratch.gate_up), peak(chunk, &InputPeaks::out));
  linear(backend, weights.out, attended, scratch.out, compute, spec.hidden);
  add(backend, compute, chunk, x, scratch.out, spec.hidden, kGateMsa);
}

void mlp(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute, const BlockWeights& weights,
         const Chunk& chunk, void* x, const MlpScratch& scratch) {
  gate_and_up(backend, spec, compute, weights, chunk, x, scratch);
  const LinearInput activated = swiglu_input(backend, weights.fc2, compute, chunk, scratch);
  linear(backend, weights.fc2, activated, scratch.out, compute, spec.hidden);
  add(backend, compute, chunk, x, scratch.out, spec.hidden, kGateMlp);
}

void measure_qkv_input(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                       const BlockWeights& weights, const Chunk& chunk, const void* x,
                       const ProjectionInputSpace& space) {
  if (!weights.qkv.needs_peak()) return;
  norm(backend, compute, chunk, x, weights.norm1, spec.hidden, kGainMsa, kShiftMsa, space.h);
  measure_input(backend, weights.qkv, space.h, compute, spec.hidden, chunk.rows, chunk.token0 == 0,
                peak(chunk, &InputPeaks::qkv));
}

void measure_fc1_input(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                       const BlockWeights& weights, const Chunk& chunk, const void* x,
                       const MlpScratch& scratch) {
  if (!weights.fc1.needs_peak()) return;
  norm(backend, compute, chunk, x, weights.norm2, spec.hidden, kGainMlp, kShiftMlp, scratch.h);
  measure_input(backend, weights.fc1, scratch.h, compute, spec.hidden, chunk.rows, chunk.token0 == 0,
                peak(chunk, &InputPeaks::fc1));
}

void measure_fc2_input(kernels::Backend& backend, const spec::ModelSpec& spec, DType compute,
                       const BlockWeights& weights, const Chunk& chunk, const void* x,
                       const MlpScratch& scratch) {
  if (!weights.fc2.needs_peak()) return;
  gate_and_up(backend, spec, compute, weights, chunk, x, scratch);
  activate(backend, compute, chunk.rows, spec.ffn, scratch);
  measure_input(backend, weights.fc2, scratch.act, compute, spec.ffn, chunk.rows, chunk.token0 == 0,
                peak(chunk, &InputPeaks::fc2));
}

}  // namespace h3s::model
