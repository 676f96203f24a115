#include "exec/embed_stage.h"

#include <algorithm>
#include <functional>

#include "base/float16.h"
#include "model/linear.h"
#include "spec/patchify.h"

namespace h3s::exec {

using kernels::Queue;

namespace {

std::int64_t row_columns(const spec::ModelSpec& spec) {
  return std::max(spec.patch_width(), spec.audio_channels);
}

}  // namespace

// fill(first, rows, out): rows of a segment as f32, `first` relative to the segment.
struct EmbedStage::Source {
  std::int64_t columns = 0;
  std::function<void(std::int64_t, std::int64_t, float*)> fill;

  // Rows that are ready: a slice of `data`, which advances past the segment.
  static Source ready(const float*& data, std::int64_t columns, std::int64_t rows) {
    const float* begin = data;
    data += rows * columns;
    return {columns, [=](std::int64_t first, std::int64_t count, float* out) {
              std::copy_n(begin + first * columns, count * columns, out);
            }};
  }
};

EmbedStage::EmbedStage(Context context, const spec::ModelSpec& spec, DType compute, std::int64_t chunk_rows,
                       std::int64_t low_rank_row_bytes)
    : context_(context),
      spec_(spec),
      compute_(compute),
      chunk_rows_(chunk_rows),
      low_rank_row_bytes_(low_rank_row_bytes),
      rows_(context, chunk_rows * row_columns(spec) * static_cast<std::int64_t>(sizeof(float)),
            "patch rows") {}

std::int64_t EmbedStage::scratch_bytes(const spec::ModelSpec& spec, std::int64_t chunk_rows,
                                       std::int64_t low_rank_row_bytes) {
  model::Carver carver;
  model::QuantScratch::take(carver, chunk_rows, row_columns(spec), low_rank_row_bytes);
  return carver.used_bytes();
}

void EmbedStage::copy_text(const spec::Segment& segment, RowStore& refined, RowStore& x) {
  for (std::int64_t row = segment.start; row < segment.stop; row += chunk_rows_) {
    const std::int64_t rows = std::min(chunk_rows_, segment.stop - row);
    const std::int64_t bytes = rows * x.row_bytes();
    const void* src = refined.read(row - segment.start, rows);
    context_.backend.copy({x.write(row, rows), bytes, src, bytes, bytes, 1}, Queue::kCompute);
    refined.done();
    x.done_dirty();
  }
}

void EmbedStage::project_rows(const spec::Segment& segment, const Source& source,
                              const model::LinearWeight& weight, RowStore& x, void* scratch) {
  for (std::int64_t row = segment.start; row < segment.stop; row += chunk_rows_) {
    const std::int64_t rows = std::min(chunk_rows_, segment.stop - row);
    source.fill(row - segment.start, rows, static_cast<float*>(rows_.begin()));
    const auto* uploaded = static_cast<const float*>(
        rows_.commit(rows * source.columns * static_cast<std::int64_t>(sizeof(float))));
    auto* written = static_cast<std::byte*>(x.write(row, rows));
    context_.in_pieces(Stage::kProject, rows, [&](std::int64_t first, std::int64_t count) {
      model::Carver carver(scratch);
      const auto quant = model::QuantScratch::take(carver, count, source.columns, low_rank_row_bytes_);
      const auto input = model::prepare_input(context_.backend, weight, uploaded + first * source.columns,
                                              DType::kF32, source.columns, count, quant);
      model::linear(context_.backend, weight, input, written + first * x.row_bytes(), compute_, spec_.hidden);
    });
    x.done_dirty();
    rows_.release();
  }
}

void EmbedStage::run(const spec::Layout& layout, const model::GlobalWeights& weights,
                     const Conditioning& conditioning, const float* video_in, const float* audio_in,
                     RowStore& refined, RowStore& x, void* scratch) {
  const spec::JobSpec& job = layout.job();
  const spec::VideoShape video{spec_.video_channels, job.latent_t, job.latent_h, job.latent_w};
  const spec::AudioShape audio{spec_.audio_channels, job.audio_t};
  // The targets arrive in the compute type.
  const auto rounded = [this](float* values, std::int64_t count) {
    if (compute_ == DType::kBF16)
      std::transform(values, values + count, values, [](float v) { return round_to<BF16>(v); });
  };
  const Source video_rows{video.columns(), [&](std::int64_t first, std::int64_t rows, float* out) {
                            spec::patchify_rows(video_in, video, first, first + rows, out);
                            rounded(out, rows * video.columns());
                          }};
  const Source audio_rows{audio.columns(), [&](std::int64_t first, std::int64_t rows, float* out) {
                            spec::pack_audio_rows(audio_in, audio, first, first + rows, out);
                            rounded(out, rows * audio.columns());
                          }};
  const float* visual = conditioning.visual_rows;
  const float* sound = conditioning.audio_rows;
  x.begin_phase();
  refined.begin_phase();
  for (const spec::Segment& segment : layout.segments()) {
    const std::int64_t rows = segment.stop - segment.start;
    switch (segment.kind) {
      case spec::SegmentKind::kText:
        copy_text(segment, refined, x);
        break;
      case spec::SegmentKind::kVideo:
        project_rows(segment, video_rows, weights.video_proj, x, scratch);
        break;
      case spec::SegmentKind::kAudio:
        project_rows(segment, audio_rows, weights.audio_proj, x, scratch);
        break;
      case spec::SegmentKind::kCond:
      case spec::SegmentKind::kRefImage:
        project_rows(segment, Source::ready(visual, video.columns(), rows), weights.video_proj, x, scratch);
        break;
      case spec::SegmentKind::kCondAudio:
      case spec::SegmentKind::kRefAudio:
        project_rows(segment, Source::ready(sound, audio.columns(), rows), weights.audio_proj, x, scratch);
        break;
    }
  }
}

}  // namespace h3s::exec
