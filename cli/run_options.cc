#include "run_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "values.h"

namespace h3s::cli {
namespace {

constexpr double kMaxShift = 1e6;                           // as make_schedule has it
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;  // beyond any sequence

void add_files(CLI::App& command, RunOptions& options) {
  command.add_option("-m,--model", options.model, "Checkpoint, safetensors")->required()->check(not_empty());
  command
      .add_option("-i,--inputs", options.inputs,
                  "Text states, conditions and sizes, safetensors (docs/inputs.md)")
      ->required()
      ->check(not_empty());
  command.add_option("-o,--output", options.output, "Video and audio latents, safetensors")
      ->required()
      ->check(not_empty());
  add_lora_options(command, options.loras);
  command.add_flag("--resume", options.resume,
                   "Go on from OUTPUT's state file, left by a run that was stopped");
  command.add_flag("--allow-trailing-bytes", options.allow_trailing_bytes,
                   "Accept a checkpoint with bytes after its last tensor");
  command
      .add_option("--ledger", options.ledger,
                  "Record memory and time of every phase in this new folder: ledger.jsonl and index.html "
                  "(docs/ledger.md); default none")
      ->check(not_empty());
  command.add_flag("--json", options.as_json, "Report as JSON on stdout");
  command
      .add_option(
          "--trace", options.trace,
          "Write every allocation, and the ops and copies of the first steps, as JSON for Perfetto or "
          "chrome://tracing; default none")
      ->check(not_empty());
}

void add_sampling(CLI::App& command, RunOptions& options) {
  sample::JobOptions& job = options.job;
  spec::TimestepOptions& timesteps = job.timesteps;
  const auto group = [&](const char* flag, auto& value, const char* help) {
    return command.add_option(flag, value, help)->capture_default_str()->group("Sampling");
  };
  group("--steps", job.steps, "Denoising steps")->check(whole(1, 10000));
  add_seed(command, "--seed", job.seed, "Noise seed, 64 bits; the noise is PyTorch's CPU noise of that seed")
      ->group("Sampling");
  group("--scheduler", options.scheduler, "Spacing of the steps")
      ->check(CLI::IsMember({"simple", "beta", "linear_quadratic"}));
  group("--denoise", job.denoise,
        "Part of the noise to start from, above 0 to 1; below 1 needs initial latents")
      ->check(above(0, 1));
  group("--shift-video", timesteps.shift_video, "Sigma shift of the video stream")
      ->check(above(0, kMaxShift));
  group("--shift-audio", timesteps.shift_audio, "Sigma shift of the audio stream")
      ->check(above(0, kMaxShift));
  group("--visual-cond-noise-aug", timesteps.visual_aug,
        "Share of a visual condition in its mix with noise, 0 to 1, and its timestep")
      ->check(within(0, 1));
  group("--audio-cond-noise-aug", timesteps.audio_aug, "The same for audio conditions")->check(within(0, 1));
  group("--compute", options.compute, "Type of the activations")->check(CLI::IsMember({"bf16", "fp32"}));
}

void add_memory(CLI::App& command, RunOptions& options) {
  const auto group = [&](const char* flag, auto& value, const char* help) {
    return command.add_option(flag, value, help)->group("Memory and speed (never change the result)");
  };
  group("--vram", options.vram,
        "Budget of device memory, for instance 8GiB; default what is free on a GPU, unlimited on the CPU")
      ->check(byte_count());
  group("--ram", options.ram, "Budget of host memory, pinned included, for instance 24GiB; default unlimited")
      ->check(byte_count());
  CLI::Option* schedule = group("--schedule", options.schedule,
                                "What stays on the device; default the fastest that fits the budgets")
                              ->check(CLI::IsMember({"resident", "head-groups", "flat"}));
  const auto dial = [&](const char* flag, std::int64_t& value, const char* help) {
    CLI::Option* option =
        group(flag, value, help)->capture_default_str()->check(whole(0, kMaxTokens))->needs(schedule);
    options.dial_options.push_back(option);
    return option;
  };
  dial("--head-group", options.dials.head_group, "Heads attended at a time; head-groups and flat");
  const auto flag = [&](const char* name, bool& value, const char* help) {
    options.dial_options.push_back(command.add_flag(name, value, help)
                                       ->group("Memory and speed (never change the result)")
                                       ->needs(schedule));
  };
  flag("--project-ahead", options.dials.project_ahead,
       "flat: project the next heads while the current ones are attended, to hide the uploads of x");
  flag("--keep-projection-input", options.dials.keep_projection_input,
       "head-groups and flat: keep the input of qkv_proj for the heads to come");
  dial("--q-chunk", options.dials.q_chunk, "Queries attended at a time, tokens; 0 all");
  dial("--kv-chunk", options.dials.kv_chunk, "Tokens projected to q, k, v at a time; 0 all");
  dial("--mlp-chunk", options.dials.mlp_chunk, "Tokens of out_proj and MLP at a time; 0 all");
  dial("--head-chunk", options.dials.head_chunk, "Tokens of the output heads at a time; 0 all");
  dial("--resident-blocks", options.dials.resident_blocks, "Blocks whose weights stay on the device");
  dial("--weight-slots", options.dials.weight_slots, "Slots the other blocks' weights stream through")
      ->check(whole(1, kMaxTokens));
  dial("--min-tokens", options.dials.min_tokens, "Sequences shorter than this are not chunked");
  group("--calibration", options.calibration,
        "Rates of this machine, written by `calibrate`; default what it stored, else what the card promises")
      ->check(not_empty());
  group("--threads", options.threads, "CPU threads; 0 as many as the machine has")
      ->capture_default_str()
      ->check(whole(0, 1024));
  group("--device", options.device, "auto (a GPU when there is one), cpu or cuda:N; CPU and GPU bits differ")
      ->check(not_empty())
      ->capture_default_str();
}

}  // namespace

void RunOptions::resolve() {
  job.scheduler = sample::scheduler_from_name(scheduler);
  job.compute = compute == "bf16" ? DType::kBF16 : DType::kF32;
  if (!schedule.empty()) dials.schedule = exec::schedule_from_name(schedule);
  where = backend::parse_device(device, threads);
  if (!vram.empty()) budgets.device_bytes = parse_bytes(vram);
  if (!ram.empty()) budgets.ram_bytes = parse_bytes(ram);
}

std::vector<std::string> RunOptions::idle_dials(const spec::ModelSpec& spec) const {
  std::vector<std::string> lines;
  const auto given = [&](const char* flag) {
    return std::any_of(dial_options.begin(), dial_options.end(),
                       [&](const CLI::Option* o) { return o->check_name(flag) && o->count() > 0; });
  };
  const auto no_effect = [&](const char* flag, bool idle, const std::string& when) {
    if (idle && given(flag)) lines.push_back(fmt::format("{} has no effect {}", flag, when));
  };
  const bool resident = dials.schedule == exec::Schedule::kResident;
  const std::string with = fmt::format("with --schedule {}", schedule);
  no_effect("--head-group", resident, with);
  no_effect("--keep-projection-input", resident, with);
  no_effect("--project-ahead", dials.schedule != exec::Schedule::kFlat, with);
  no_effect("--weight-slots", where.on_cpu(), "on the CPU, where weights stay where the file is mapped");
  if (!resident && dials.head_group > spec.heads)
    lines.push_back(fmt::format("--head-group {}: the model has {} heads, all of which are attended at once",
                                dials.head_group, spec.heads));
  if (dials.resident_blocks > spec.layers)
    lines.push_back(fmt::format("--resident-blocks {}: the model has {} blocks, all of which stay",
                                dials.resident_blocks, spec.layers));
  return lines;
}

void add_run_options(CLI::App& command, RunOptions& options) {
  add_files(command, options);
  add_sampling(command, options);
  add_memory(command, options);
  command.footer(
      "After every step the state is saved beside OUTPUT; Ctrl-C, SIGTERM and SIGHUP stop between "
      "blocks and keep it (exit code 128 + the signal's number).");
}

}  // namespace h3s::cli
