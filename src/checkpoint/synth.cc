#include "checkpoint/synth.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "checkpoint/encode_layer.h"
#include "checkpoint/generator.h"
#include "checkpoint/parts.h"
#include "io/safetensors.h"
#include "io/safetensors_header.h"

namespace h3s::checkpoint {
namespace {

// Elements a thread makes at a time: at 4 bytes each, 8 MiB, far above the cost of starting it.
constexpr std::int64_t kChunkElements = std::int64_t{1} << 21;
constexpr std::int64_t kMaxDim = std::int64_t{1} << 24;
constexpr std::int64_t kMaxBlocks = 4096;  // the header of more would pass the limit of the format
constexpr std::int64_t kMaxThreads = 256;

class Synthesis {
 public:
  Synthesis(const std::string& path, const SynthOptions& options, const SynthProgress& progress)
      : options_(options),
        progress_(progress),
        total_bytes_(synthetic_data_bytes(options)),
        writer_(path, checkpoint_tensors(options.spec, options.format, options.prefix),
                {{"generator", "h3stream synth"}, {"seed", std::to_string(options.seed)}}) {}

  void run() {
    for (const Part& part : model_parts(options_.spec)) {
      if (stored_quantised(part.kind, options_.format))
        quantised_layer(part);
      else
        plain(part.key(), part.shape, stored_dtype(part.kind, options_.spec));
      if (part.bias) plain(part.name + ".bias", {part.shape[0]}, stored_dtype(part.kind, options_.spec));
    }
    writer_.finish();
  }

 private:
  void write(const void* data, std::size_t bytes) {
    writer_.write(data, bytes);
    done_bytes_ += bytes;
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  void plain(const std::string& key, const std::vector<std::int64_t>& shape, DType dtype) {
    const auto generator = TensorGenerator::weight(key, shape, options_.seed);
    const auto element = static_cast<std::int64_t>(dtype_size(dtype));
    std::int64_t count = 1;
    for (const std::int64_t dim : shape) count *= dim;
    const std::int64_t chunk = kChunkElements * options_.threads;
    for (std::int64_t at = 0; at < count; at += chunk) {
      const std::int64_t made = std::min(chunk, count - at);
      bytes_.resize(static_cast<std::size_t>(made * element));
      in_slices(made, 1, options_.threads, [&](std::int64_t begin, std::int64_t end) {
        generator.stored(dtype, at + begin, at + end, bytes_.data() + begin * element);
      });
      write(bytes_.data(), bytes_.size());
    }
  }

  void quantised_layer(const Part& part) {
    const std::int64_t n = part.shape[0], k = part.shape[1];
    const auto generator = TensorGenerator::weight(part.key(), part.shape, options_.seed);
    const ReadRow read = [&](std::int64_t row, std::span<BF16> out) {
      generator.stored(DType::kBF16, row * k, (row + 1) * k, reinterpret_cast<std::byte*>(out.data()));
    };
    const bool scaled = LayerEncoder::needs_largest(options_.format);
    LayerEncoder encoder(options_.format, n, k, synthetic_rotate_group(k),
                         scaled ? largest_magnitude(n, k, options_.threads, read) : 0.0f);
    encode_layer(encoder, n, k, options_.threads, read,
                 [this](const void* data, std::size_t bytes) { write(data, bytes); });
  }

  const SynthOptions& options_;
  const SynthProgress& progress_;
  std::uint64_t total_bytes_ = 0, done_bytes_ = 0;
  io::SafetensorsWriter writer_;
  std::vector<std::byte> bytes_;  // the chunk being made
};

void check_size(const char* name, std::int64_t value, std::int64_t least, std::int64_t most = kMaxDim) {
  if (value < least || value > most)
    fail(Status::kInvalidArgument, "[synth] {} must be {} to {}, got {}", name, least, most, value);
}

void check_options(const SynthOptions& options) {
  const spec::ModelSpec& spec = options.spec;
  check_size("hidden", spec.hidden, 1);
  check_size("layers", spec.layers, 1, kMaxBlocks);
  check_size("refiner layers", spec.refiner_layers, 0, kMaxBlocks);
  check_size("heads", spec.heads, 1);
  check_size("ffn", spec.ffn, 1);
  check_size("video channels", spec.video_channels, 1);
  check_size("audio channels", spec.audio_channels, 1);
  check_size("text width", spec.text_dim, 1);
  check_size("time width", spec.time_dim, 1);
  check_size("curve grid", spec.curve_grid, spec.curve() ? 2 : 0);
  check_size("timestep width", spec.timestep_dim, 2);
  check_size("time hidden width", spec.time_hidden, 1);
  check_size("threads", options.threads, 1, kMaxThreads);
  if (spec.timestep_dim % 2 != 0)
    fail(Status::kInvalidArgument, "[synth] timestep width must be even, got {}", spec.timestep_dim);
}

}  // namespace

std::uint64_t synthetic_data_bytes(const SynthOptions& options) {
  std::uint64_t bytes = 0;
  for (const io::TensorDecl& tensor : checkpoint_tensors(options.spec, options.format))
    bytes += io::tensor_bytes(tensor.dtype, tensor.shape).value_or(0);
  return bytes;
}

void write_synthetic_checkpoint(const std::string& path, const SynthOptions& options,
                                const SynthProgress& progress) {
  check_options(options);
  Synthesis(path, options, progress).run();
}

}  // namespace h3s::checkpoint
