// make_reader_corpus DIR: small valid files of every form and format, from which the fuzzer starts.
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "checkpoint/synth.h"

namespace {

using namespace h3s;
using checkpoint::WeightFormat;

// As small as a network can be, about 30 kB, so that the fuzzer's mutations hit headers and tags; the packed
// formats hold no narrower rows than 16 or 64 columns.
spec::ModelSpec smallest_spec(bool curve, WeightFormat format) {
  const std::int64_t width = format == WeightFormat::kConvrotW4A4 ? 64
                             : format == WeightFormat::kAsymW4A8  ? 16
                                                                  : 4;
  return {.hidden = width,
          .layers = 1,
          .refiner_layers = 0,
          .heads = 1,
          .ffn = width,
          .video_channels = 1,
          .audio_channels = 1,
          .text_dim = 1,
          .timestep_dim = 2,
          .time_hidden = 1,
          .time_dim = 1,
          .curve_grid = curve ? 2 : 0};
}

void write_containers(const std::filesystem::path& directory) {
  io::SafetensorsWriter(directory / "empty", {}).finish();
  io::SafetensorsWriter writer(
      directory / "kinds", {{"a", DType::kF32, {1, 2}}, {"s", DType::kU8, {}}, {"z", DType::kI64, {0, 7}}},
      {{"config", R"({"transformer":{"hidden_size":4}})"}, {"key", "value"}});
  writer.write("012345678", 9);
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return fmt::print(stderr, "usage: make_reader_corpus DIR\n"), 2;
  const std::filesystem::path directory = argv[1];
  std::filesystem::create_directories(directory);
  try {
    write_containers(directory);
    for (const bool curve : {false, true})
      for (const WeightFormat format :
           {WeightFormat::kBF16, WeightFormat::kInt8Tensorwise, WeightFormat::kFloat8E4M3,
            WeightFormat::kFloat8E5M2, WeightFormat::kMxfp8, WeightFormat::kNvfp4, WeightFormat::kAsymW4A8,
            WeightFormat::kConvrotW4A4})
        checkpoint::write_synthetic_checkpoint(
            directory / fmt::format("{}_{}", curve ? "curve" : "full", weight_format_name(format)),
            {.spec = smallest_spec(curve, format),
             .format = format,
             .seed = 1,
             .prefix = curve ? "" : "diffusion_model."},
            {});
  } catch (const Error& e) {
    return fmt::print(stderr, "make_reader_corpus: {}\n", e.what()), 1;
  }
  return 0;
}
