#include "exec/engine_fixture.h"

#include <fmt/format.h>

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "checkpoint/generator.h"
#include "checkpoint/synth.h"

namespace h3s::test {
namespace {

std::vector<float> values(const std::string& name, std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  checkpoint::TensorGenerator::input(name, kSeed).values(0, count, out.data());
  return out;
}

}  // namespace

spec::ModelSpec small_spec(bool curve) {
  spec::ModelSpec spec{.hidden = 256,
                       .layers = 2,
                       .refiner_layers = 1,
                       .heads = 3,
                       .ffn = 512,
                       .text_dim = 128,
                       .timestep_dim = 64,
                       .time_hidden = 128,
                       .time_dim = curve ? 8 : 64,
                       .curve_grid = curve ? 17 : 0};
  return spec;
}

CheckpointFile::CheckpointFile(const spec::ModelSpec& spec, checkpoint::WeightFormat format,
                               const std::string& prefix) {
  static int count = 0;
  path_ = (std::filesystem::temp_directory_path() /
           fmt::format("h3s-test-{}-{}.safetensors", ::getpid(), count++))
              .string();
  checkpoint::write_synthetic_checkpoint(
      path_, {.spec = spec, .format = format, .seed = kSeed, .prefix = prefix}, {});
  checkpoint_ = std::make_unique<checkpoint::Checkpoint>(checkpoint::Checkpoint::open(path_));
}

CheckpointFile::~CheckpointFile() {
  std::remove(path_.c_str());
}

spec::JobSpec ragged_job() {
  return {.text_len = 17, .latent_t = 5, .latent_h = 14, .latent_w = 16, .audio_t = 13};
}

verify::JobInputs random_inputs(const spec::ModelSpec& spec, const spec::JobSpec& job) {
  const spec::Layout layout(job);
  std::int64_t visual = 0, sound = 0;
  for (const spec::Segment& s : layout.segments()) {
    if (s.kind == spec::SegmentKind::kCond || s.kind == spec::SegmentKind::kRefImage)
      visual += s.stop - s.start;
    if (s.kind == spec::SegmentKind::kCondAudio || s.kind == spec::SegmentKind::kRefAudio)
      sound += s.stop - s.start;
  }
  return {.text = values("text", job.text_len * spec.text_dim),
          .video = values("video", spec.video_channels * job.latent_t * job.latent_h * job.latent_w),
          .audio = values("audio", spec.audio_channels * 2 * job.audio_t),
          .visual_rows = values("visual", visual * spec.patch_width()),
          .audio_rows = values("sound", sound * spec.audio_channels)};
}

}  // namespace h3s::test
