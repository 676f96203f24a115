#include "exec/time_stage.h"

#include <algorithm>
#include <cstring>

#include "base/dispatch.h"
#include "model/time_embedding.h"
#include "ops/ops.h"

namespace h3s::exec {

using kernels::Queue;
using model::Carver;

void TimeStage::Buffers::take(Carver& carver, const spec::ModelSpec& spec, DType compute,
                              std::int64_t low_rank_row_bytes) {
  const std::int64_t d = spec.hidden;
  constexpr std::int64_t kTableColumns = spec::kModulationParts;
  hidden = carver.take<float>(spec.curve() ? 0 : kMaxTimesteps * spec.time_hidden);
  t_emb = carver.take<float>(kMaxTimesteps * spec.time_dim);
  input = carver.take<float>(kMaxTimesteps * spec.time_dim);
  adaln = carver.take<float>(kMaxTimesteps * spec::kModalities * kTableColumns * d);
  table = carver.take_bytes(kMaxTimesteps * spec::kModalities * kTableColumns * d * element_bytes(compute));
  final_rows = carver.take<float>(kMaxTimesteps * 2 * d);
  peak = carver.take<float>(1);
  quant = model::QuantScratch::take_with_numbers(
      carver, kMaxTimesteps, std::max(spec.time_dim, spec.time_hidden), low_rank_row_bytes);
}

TimeStage::TimeStage(Context context, const spec::ModelSpec& spec, DType compute,
                     std::int64_t low_rank_row_bytes)
    : context_(context),
      spec_(spec),
      compute_(compute),
      upload_(context,
              kMaxTimesteps * std::max(spec.timestep_dim, spec.time_dim) *
                  static_cast<std::int64_t>(sizeof(float)),
              "timesteps") {
  Carver measure;
  buffers_.take(measure, spec, compute, low_rank_row_bytes);
  device_ = context.accountant.allocate(mem::Space::kDevice, measure.used_bytes(), "modulation tables");
  pinned_ = context.accountant.allocate(
      mem::Space::kPinned, kMaxTimesteps * spec.time_dim * static_cast<std::int64_t>(sizeof(float)),
      "timesteps");
  Carver carver(device_.data());
  buffers_.take(carver, spec, compute, low_rank_row_bytes);
}

void TimeStage::embed(const model::GlobalWeights& weights, const float* curve_table,
                      const spec::Timesteps& timesteps) {
  count_ = static_cast<std::int64_t>(timesteps.unique.size());
  H3S_ASSERT(count_ <= kMaxTimesteps);
  segments_ = timesteps.segments;
  const std::vector<float> rows =
      spec_.curve() ? model::curve_embedding(timesteps.unique, curve_table, spec_.curve_grid, spec_.time_dim)
                    : model::sinusoid_embedding(timesteps.unique, spec_.timestep_dim);
  const auto bytes = static_cast<std::int64_t>(rows.size() * sizeof(float));
  std::memcpy(upload_.begin(), rows.data(), rows.size() * sizeof(float));
  const void* uploaded = upload_.commit(bytes);
  if (spec_.curve()) {
    // The table is post-activation: its rows are t_emb and what AdaLN projects.
    for (void* dst : {buffers_.t_emb, buffers_.input})
      context_.backend.copy({dst, bytes, uploaded, bytes, bytes, 1}, Queue::kCompute);
  } else {
    const auto input = model::prepare_input(context_.backend, weights.time_in, uploaded, DType::kF32,
                                            spec_.timestep_dim, count_, buffers_.quant);
    model::linear(context_.backend, weights.time_in, input, buffers_.hidden, DType::kF32, spec_.time_hidden);
    ops::silu(context_.backend, {.x = buffers_.hidden,
                                 .y = buffers_.hidden,
                                 .dtype = DType::kF32,
                                 .count = count_ * spec_.time_hidden});
    const auto activated = model::prepare_input(context_.backend, weights.time_out, buffers_.hidden,
                                                DType::kF32, spec_.time_hidden, count_, buffers_.quant);
    model::linear(context_.backend, weights.time_out, activated, buffers_.t_emb, compute_, spec_.time_dim);
    ops::silu(
        context_.backend,
        {.x = buffers_.t_emb, .y = buffers_.input, .dtype = compute_, .count = count_ * spec_.time_dim});
  }
  upload_.release();
}

// All timesteps of a step are projected at once: their rows are the whole input.
void TimeStage::project(const model::LinearWeight& weight, float* y) {
  if (weight.needs_peak())
    model::measure_input(context_.backend, weight, buffers_.input, embedding_dtype(), spec_.time_dim, count_,
                         /*first=*/true, buffers_.peak);
  const auto input = model::prepare_input(context_.backend, weight, buffers_.input, embedding_dtype(),
                                          spec_.time_dim, count_, buffers_.quant, buffers_.peak);
  model::linear(context_.backend, weight, input, y, DType::kF32, weight.n);
}

kernels::Modulation TimeStage::modulation(const model::LinearWeight& adaln) {
  project(adaln, buffers_.adaln);
  // A projection row holds its three modalities one after another: the table simply has three times the rows.
  ops::modulation_table(context_.backend, {.adaln = buffers_.adaln,
                                           .adaln_dtype = DType::kF32,
                                           .table = buffers_.table,
                                           .dtype = compute_,
                                           .rows = count_ * spec::kModalities,
                                           .c = spec_.hidden});
  return {.segments = segments_.data(),
          .num_segments = static_cast<std::int64_t>(segments_.size()),
          .token0 = 0,
          .table = buffers_.table,
          .row_stride = spec::kModulationParts * spec_.hidden};
}

void TimeStage::project_final(const model::LinearWeight& adaln) {
  project(adaln, buffers_.final_rows);
}

TimeStage::FinalRow TimeStage::final_row(std::int64_t timestep_idx) const {
  const float* row = buffers_.final_rows + timestep_idx * 2 * spec_.hidden;
  return {row, row + spec_.hidden};
}

std::vector<float> TimeStage::time_embedding() {
  const DType dtype = embedding_dtype();
  const std::int64_t bytes = count_ * spec_.time_dim * element_bytes(dtype);
  context_.backend.copy({pinned_.data(), bytes, buffers_.t_emb, bytes, bytes, 1}, Queue::kCompute);
  context_.backend.sync(context_.backend.record(Queue::kCompute));
  std::vector<float> values(static_cast<std::size_t>(count_ * spec_.time_dim));
  dispatch_dtype<float, BF16>(dtype, "time_embedding", [&]<typename T>() {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = to_float(pinned_.as<T>()[i]);
  });
  return values;
}

}  // namespace h3s::exec
