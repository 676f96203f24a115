#include "exec/output_stage.h"

#include <algorithm>

#include "base/float16.h"
#include "ops/ops.h"
#include "spec/patchify.h"

namespace h3s::exec {

using kernels::Queue;

namespace {

std::int64_t head_columns(const spec::ModelSpec& spec) {
  return std::max(spec.patch_width(), spec.audio_channels);
}

}  // namespace

struct OutputStage::Scratch {
  float* h = nullptr;    // [rows, D]
  float* out = nullptr;  // [rows, columns]
  model::QuantScratch quant;
  Scratch(model::Carver& carver, const spec::ModelSpec& spec, std::int64_t rows,
          std::int64_t low_rank_row_bytes)
      : h(carver.take<float>(rows * spec.hidden)),
        out(carver.take<float>(rows * head_columns(spec))),
        quant(model::QuantScratch::take(carver, rows, spec.hidden, low_rank_row_bytes)) {}
};

OutputStage::OutputStage(Context context, const spec::ModelSpec& spec, DType compute, std::int64_t chunk_rows,
                         std::int64_t low_rank_row_bytes)
    : context_(context),
      spec_(spec),
      compute_(compute),
      chunk_rows_(chunk_rows),
      low_rank_row_bytes_(low_rank_row_bytes),
      rows_(context.accountant.allocate(
          mem::Space::kPinned, chunk_rows * head_columns(spec) * static_cast<std::int64_t>(sizeof(float)),
          "output rows")) {}

std::int64_t OutputStage::scratch_bytes(const spec::ModelSpec& spec, std::int64_t chunk_rows,
                                        std::int64_t low_rank_row_bytes) {
  model::Carver carver;
  Scratch(carver, spec, chunk_rows, low_rank_row_bytes);
  return carver.used_bytes();
}

template <typename Unpack>
void OutputStage::run_segment(const spec::Segment& segment, const model::LinearWeight& head,
                              TimeStage::FinalRow row, const float* norm, RowStore& x, void* scratch,
                              Unpack unpack) {
  for (std::int64_t start = segment.start; start < segment.stop; start += chunk_rows_) {
    const std::int64_t rows = std::min(chunk_rows_, segment.stop - start);
    model::Carver carver(scratch);
    const Scratch s(carver, spec_, rows, low_rank_row_bytes_);
    const auto* stream = static_cast<const std::byte*>(x.read(start, rows));
    context_.in_pieces(Stage::kHeads, rows, [&](std::int64_t first, std::int64_t count) {
      ops::final_modulate(context_.backend, {.x = stream + first * x.row_bytes(),
                                             .weight = norm,
                                             .scale = row.scale,
                                             .shift = row.shift,
                                             .round_each = !spec_.curve(),
                                             .y = s.h,
                                             .dtype = compute_,
                                             .m = count,
                                             .c = spec_.hidden});
      const auto input =
          model::prepare_input(context_.backend, head, s.h, DType::kF32, spec_.hidden, count, s.quant);
      model::linear(context_.backend, head, input, s.out + first * head.n, DType::kF32, head.n);
    });
    x.done();
    const std::int64_t bytes = rows * head.n * static_cast<std::int64_t>(sizeof(float));
    context_.backend.copy({rows_.data(), bytes, s.out, bytes, bytes, 1}, Queue::kCompute);
    context_.backend.sync(context_.backend.record(Queue::kCompute));
    auto* values = rows_.as<float>();
    std::transform(values, values + rows * head.n, values,
                   [this](float v) { return -(compute_ == DType::kBF16 ? round_to<BF16>(v) : v); });
    unpack(values, start - segment.start, rows);
  }
}

void OutputStage::run(const spec::Layout& layout, const spec::Timesteps& timesteps,
                      const model::GlobalWeights& weights, TimeStage& time, RowStore& x, void* scratch,
                      float* video_out, float* audio_out) {
  const spec::JobSpec& job = layout.job();
  const spec::VideoShape video{spec_.video_channels, job.latent_t, job.latent_h, job.latent_w};
  const spec::AudioShape audio{spec_.audio_channels, job.audio_t};
  time.project_final(weights.final_adaln);
  x.begin_phase();
  run_segment(layout.audio(), weights.audio_out, time.final_row(timesteps.audio_row), weights.final_norm, x,
              scratch, [&](const float* rows, std::int64_t first, std::int64_t count) {
                spec::unpack_audio_rows(rows, audio, first, first + count, audio_out);
              });
  run_segment(layout.video(), weights.video_out, time.final_row(timesteps.video_row), weights.final_norm, x,
              scratch, [&](const float* rows, std::int64_t first, std::int64_t count) {
                spec::unpatchify_rows(rows, video, first, first + count, video_out);
              });
}

}  // namespace h3s::exec
