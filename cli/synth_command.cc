// `h3stream synth`: a synthetic checkpoint with the key layout of a real one.
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "checkpoint/recipe.h"
#include "checkpoint/synth.h"
#include "commands.h"
#include "log.h"
#include "progress.h"
#include "values.h"

namespace h3s::cli {
namespace {

using checkpoint::SynthOptions;
using spec::ModelSpec;

// Sizes of a preset in either form; what a form does not use is ignored.
struct Preset {
  ModelSpec spec;
  std::int64_t curve_grid, curve_time_dim;
};

const std::map<std::string, Preset> kPresets{
    {"tiny",
     {{.hidden = 256,
       .layers = 3,
       .refiner_layers = 1,
       .heads = 2,
       .ffn = 512,
       .text_dim = 128,
       .timestep_dim = 64,
       .time_hidden = 128,
       .time_dim = 64},
      17,
      8}},
    {"small",
     {{.hidden = 1024,
       .layers = 8,
       .refiner_layers = 2,
       .heads = 10,
       .ffn = 2816,
       .text_dim = 1024,
       .timestep_dim = 256,
       .time_hidden = 1024,
       .time_dim = 512},
      257,
      8}},
    {"real", {ModelSpec{}, 1025, 8}},
};

// A size given on the command line replaces the preset's.
struct SizeOption {
  const char* flag;
  const char* help;
  std::int64_t ModelSpec::*member;
};
constexpr std::int64_t kMaxSize = 1 << 24;  // far above any model, and no product of two overflows

constexpr SizeOption kSizes[] = {
    {"--hidden", "Hidden size, channels", &ModelSpec::hidden},
    {"--layers", "DiT blocks", &ModelSpec::layers},
    {"--refiner-layers", "Token-refiner blocks", &ModelSpec::refiner_layers},
    {"--heads", "Attention heads of 128 channels", &ModelSpec::heads},
    {"--ffn", "MLP width, channels", &ModelSpec::ffn},
    {"--video-channels", "Video latent channels", &ModelSpec::video_channels},
    {"--audio-channels", "Audio latent channels", &ModelSpec::audio_channels},
    {"--text-dim", "Width of the text states", &ModelSpec::text_dim},
    {"--time-dim", "Width of the time embedding", &ModelSpec::time_dim},
    {"--curve-grid", "Points of the curve table (curve form)", &ModelSpec::curve_grid},
    {"--timestep-dim", "Width of the timestep sinusoid (full form)", &ModelSpec::timestep_dim},
    {"--time-hidden", "Hidden width of the time embedder (full form)", &ModelSpec::time_hidden},
};

struct Arguments {
  std::string output, preset = "tiny", form = "curve", format = "bf16", prefix;
  std::uint64_t seed = 20261130;
  int threads = 2;
  std::optional<std::int64_t> sizes[std::size(kSizes)];
};

ModelSpec make_spec(const Arguments& arguments) {
  const Preset& preset = kPresets.at(arguments.preset);
  ModelSpec spec = preset.spec;
  const bool curve = arguments.form == "curve";
  spec.curve_grid = curve ? preset.curve_grid : 0;
  if (curve) spec.time_dim = preset.curve_time_dim;
  for (std::size_t i = 0; i < std::size(kSizes); ++i)
    if (arguments.sizes[i]) spec.*kSizes[i].member = *arguments.sizes[i];
  if (spec.curve() != curve)
    fail(Status::kInvalidArgument, "[synth] --curve-grid belongs to --form curve and must be at least 2");
  return spec;
}

int synth(const Arguments& arguments) {
  SynthOptions options;
  options.spec = make_spec(arguments);
  options.format = *checkpoint::writable_format(arguments.format);
  options.seed = arguments.seed;
  options.prefix = arguments.prefix;
  options.threads = arguments.threads;
  write_synthetic_checkpoint(arguments.output, options, ByteProgress());
  fmt::print("{}\n", one_line(arguments.output));
  return 0;
}

}  // namespace

void add_synth(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("synth", "Write a synthetic checkpoint with the key layout of a real one");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("-o,--output", arguments->output, "File to write, whole or not at all")
      ->required()
      ->check(not_empty());
  command
      ->add_option(
          "--preset", arguments->preset,
          "Sizes to start from: tiny (6 MB), small (0.3 GB), real (40 GB, int8 21 GB; full form 66, 47)")
      ->check(CLI::IsMember({"tiny", "small", "real"}))
      ->capture_default_str();
  command->add_option("--form", arguments->form, "Timestep form: curve (pruned) or full")
      ->check(CLI::IsMember({"curve", "full"}))
      ->capture_default_str();
  command
      ->add_option("--format", arguments->format,
                   "Weights of the block linears; int8 is int8_tensorwise with ConvRot")
      ->check(CLI::IsMember(checkpoint::synthetic_format_names()))
      ->capture_default_str();
  add_seed(*command, "--seed", arguments->seed, "Seed of the generator, 64 bits");
  command->add_option("--prefix", arguments->prefix,
                      "Prefix of every key, for instance \"model.diffusion_model.\"");
  command->add_option("--threads", arguments->threads, "Threads; the bytes do not depend on it")
      ->check(whole(1, 1024))
      ->capture_default_str();
  for (std::size_t i = 0; i < std::size(kSizes); ++i)
    command
        ->add_option(kSizes[i].flag, arguments->sizes[i],
                     std::string(kSizes[i].help) + "; default: the preset's")
        ->check(whole(0, kMaxSize))
        ->group("Sizes");
  command->callback([arguments, &run] { run = [arguments] { return synth(*arguments); }; });
}

}  // namespace h3s::cli
