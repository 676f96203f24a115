#include "exec/conditioning_stage.h"

#include <algorithm>

#include "base/dispatch.h"
#include "ops/ops.h"

namespace h3s::exec {

using kernels::Queue;

namespace {

std::int64_t text_scratch_bytes(const spec::ModelSpec& spec, std::int64_t text_len, const Dials& dials,
                                std::int64_t low_rank_row_bytes) {
  model::Carver carver;
  model::QuantScratch::take_with_numbers(carver, effective_dials(dials, spec, text_len).kv_chunk,
                                         spec.text_dim, low_rank_row_bytes);
  return carver.used_bytes();
}

}  // namespace

ConditioningStage::ConditioningStage(Context context, const spec::ModelSpec& spec, DType compute,
                                     std::int64_t text_len, const Dials& dials, const WeightLoader& loader)
    : context_(context),
      spec_(spec),
      compute_(compute),
      sequence_(context, spec, compute, text_len, dials,
                {.input_peaks = loader.sizes().blocks_need_peaks || loader.sizes().text_needs_peak,
                 .extra_scratch_bytes =
                     text_scratch_bytes(spec, text_len, dials, loader.sizes().low_rank_row_bytes),
                 .low_rank_row_bytes = loader.sizes().low_rank_row_bytes}),
      low_rank_row_bytes_(loader.sizes().low_rank_row_bytes),
      text_rows_(context, sequence_.dials().kv_chunk * spec.text_dim * element_bytes(compute), "text rows"),
      slot_(context, loader.sizes().conditioning, "text projection"),
      drain_(context) {}

void ConditioningStage::load(const WeightLoader& loader) {
  std::int64_t used = 0;
  weights_ = loader.load_conditioning(slot_.memory(), &used);
  context_.backend.wait(Queue::kCompute, slot_.upload(used));
}

// work(start, rows, text rows in the compute type on the device), chunk by chunk.
template <typename Work>
void ConditioningStage::for_text_chunks(const float* text, Work work) {
  const std::int64_t width = spec_.text_dim;
  const std::int64_t chunk = sequence_.dials().kv_chunk;
  for (std::int64_t start = 0; start < sequence_.tokens(); start += chunk) {
    const std::int64_t rows = std::min(chunk, sequence_.tokens() - start);
    dispatch_dtype<float, BF16>(compute_, "text rows", [&]<typename T>() {
      std::transform(text + start * width, text + (start + rows) * width, static_cast<T*>(text_rows_.begin()),
                     [](float v) { return from_float<T>(v); });
    });
    work(start, rows,
         static_cast<const std::byte*>(text_rows_.commit(rows * width * element_bytes(compute_))));
    text_rows_.release();
  }
}

void ConditioningStage::project_text(const float* text) {
  const std::int64_t width = spec_.text_dim, row_bytes = width * element_bytes(compute_);
  const model::LinearWeight& weight = weights_.condition_proj;
  float* peak = sequence_.spare_peak();
  if (weight.needs_peak())
    for_text_chunks(text, [&](std::int64_t start, std::int64_t rows, const std::byte* uploaded) {
      context_.in_pieces(Stage::kProject, rows, [&](std::int64_t first, std::int64_t count) {
        model::measure_input(context_.backend, weight, uploaded + first * row_bytes, compute_, width, count,
                             start + first == 0, peak);
      });
    });
  for_text_chunks(text, [&](std::int64_t start, std::int64_t rows, const std::byte* uploaded) {
    auto* written = static_cast<std::byte*>(sequence_.x().write(start, rows));
    context_.in_pieces(Stage::kProject, rows, [&](std::int64_t first, std::int64_t count) {
      model::Carver carver(sequence_.scratch());
      const auto quant = model::QuantScratch::take_with_numbers(carver, count, width, low_rank_row_bytes_);
      const auto input = model::prepare_input(context_.backend, weight, uploaded + first * row_bytes,
                                              compute_, width, count, quant, peak);
      model::linear(context_.backend, weight, input, written + first * sequence_.x().row_bytes(), compute_,
                    spec_.hidden);
    });
    sequence_.x().done_dirty();
  });
}

void ConditioningStage::normalise(RowStore& refined) {
  sequence_.x().begin_phase();
  const std::int64_t chunk = sequence_.dials().kv_chunk;
  for (std::int64_t start = 0; start < sequence_.tokens(); start += chunk) {
    const std::int64_t rows = std::min(chunk, sequence_.tokens() - start);
    const auto* x = static_cast<const std::byte*>(sequence_.x().read(start, rows));
    auto* y = static_cast<std::byte*>(refined.write(start, rows));
    context_.in_pieces(Stage::kProject, rows, [&](std::int64_t first, std::int64_t count) {
      ops::rms_norm(context_.backend, {.x = x + first * refined.row_bytes(),
                                       .x_stride = spec_.hidden,
                                       .weight = weights_.final_norm,
                                       .y = y + first * refined.row_bytes(),
                                       .dtype = compute_,
                                       .m = count,
                                       .c = spec_.hidden});
    });
    sequence_.x().done();
    refined.done_dirty();
  }
  refined.settle();
}

void ConditioningStage::run(const WeightLoader& loader, WeightRing& ring, const float* text,
                            RowStore& refined) {
  load(loader);
  project_text(text);
  for (std::int64_t i = 0; i < spec_.refiner_layers; ++i) {
    sequence_.run_block(
        {.weights = ring.acquire(fmt::format("token_refiner.blocks.{}", i), /*adaln=*/false)});
    ring.release();
  }
  normalise(refined);
}

}  // namespace h3s::exec
