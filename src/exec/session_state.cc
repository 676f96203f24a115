#include "exec/session_state.h"

#include <algorithm>

namespace h3s::exec {
namespace {

std::int64_t stage_scratch_bytes(const spec::ModelSpec& spec, std::int64_t tokens, const Dials& dials,
                                 std::int64_t low_rank_row_bytes) {
  const Dials effective = effective_dials(dials, spec, tokens);
  return std::max(EmbedStage::scratch_bytes(spec, effective.kv_chunk, low_rank_row_bytes),
                  OutputStage::scratch_bytes(spec, effective.head_chunk, low_rank_row_bytes));
}

// Refined text is written in chunks of the text's own sequence and read in those of the whole one.
std::int64_t refined_chunk(const spec::ModelSpec& spec, const spec::Layout& layout, const Dials& dials) {
  return std::max(effective_dials(dials, spec, layout.job().text_len).kv_chunk,
                  effective_dials(dials, spec, layout.tokens()).kv_chunk);
}

// The full form has no curve.
mem::Buffer allocate_curve(Context context, const spec::ModelSpec& spec) {
  if (!spec.curve()) return {};
  return context.accountant.allocate(
      mem::Space::kHost, spec.curve_grid * spec.time_dim * static_cast<std::int64_t>(sizeof(float)),
      "time curve");
}

mem::Buffer allocate_merge_memory(Context context, const WeightLoader& weights) {
  if (weights.sizes().merge_bytes == 0) return {};
  return context.accountant.allocate(mem::Space::kHost, weights.sizes().merge_bytes, "merging of LoRAs");
}

}  // namespace

SessionState::SessionState(Context ctx, const WeightLoader& weights, const spec::Layout& job,
                           const SessionOptions& opts)
    : context(ctx),
      checkpoint(weights.checkpoint()),
      spec(checkpoint.spec()),
      layout(job),
      options(opts),
      merge_memory(allocate_merge_memory(ctx, weights)),
      loader(weights.with_merge_memory(merge_memory.data())),
      globals_slot(ctx, loader.sizes().globals, "weights outside blocks"),
      curve_table(allocate_curve(ctx, spec)),
      ring(ctx, loader, opts.dials),
      sequence(ctx, spec, opts.compute, job.tokens(), opts.dials,
               {.rotates = true,
                .input_peaks = loader.sizes().blocks_need_peaks,
                .extra_scratch_bytes =
                    stage_scratch_bytes(spec, job.tokens(), opts.dials, loader.sizes().low_rank_row_bytes),
                .kept_input_row_bytes = loader.sizes().kept_input_row,
                .low_rank_row_bytes = loader.sizes().low_rank_row_bytes}),
      refined(ctx, sequence.x().on_device() ? mem::Space::kDevice : mem::Space::kPinned, job.job().text_len,
              spec.hidden * element_bytes(opts.compute), refined_chunk(spec, job, opts.dials),
              "refined text"),
      time(ctx, spec, opts.compute, loader.sizes().low_rank_row_bytes),
      embed(ctx, spec, opts.compute, sequence.dials().kv_chunk, loader.sizes().low_rank_row_bytes),
      output(ctx, spec, opts.compute, sequence.dials().head_chunk, loader.sizes().low_rank_row_bytes) {}

ConditioningStage SessionState::make_conditioning_stage() const {
  return {context, spec, options.compute, layout.job().text_len, options.dials, loader};
}

}  // namespace h3s::exec
