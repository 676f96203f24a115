// `h3stream run`: from noise to latents.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "base/bytes.h"
#include "base/error.h"
#include "commands.h"
#include "exec/footprint.h"
#include "exec/session.h"
#include "interrupt.h"
#include "io/output_file.h"
#include "memory_table.h"
#include "progress.h"
#include "sample/job.h"

namespace h3s::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kInterruptedExit = 130;            // 128 + SIGINT, as shells report it
constexpr std::uint64_t kHeaderRoom = 64 << 10;  // more than the headers of an output and two state files

struct Options {
  std::string model, inputs, output;
  std::string scheduler = "simple", compute = "bf16", device = "auto";
  std::string schedule, vram, ram;  // empty: chosen by the budgets; unlimited
  sample::JobOptions job;
  exec::Dials dials;
  int threads = 0;
  bool resume = false, as_json = false, allow_trailing_bytes = false;
};

exec::Budgets budgets_of(const Options& options) {
  exec::Budgets budgets;
  if (!options.vram.empty())
    budgets.bytes[static_cast<std::size_t>(mem::Space::kDevice)] = parse_bytes(options.vram);
  if (!options.ram.empty()) budgets.ram_bytes = parse_bytes(options.ram);
  return budgets;
}

// What the run will hold and by which dials, before anything of size is allocated.
struct Plan {
  exec::SessionOptions session;
  exec::Footprint footprint;
  exec::Budgets budgets;
};

Plan make_plan(const Options& options, const checkpoint::Checkpoint& checkpoint, const sample::Inputs& inputs,
               const spec::Layout& layout) {
  Plan plan{{options.job.compute, options.dials, options.job.timesteps}, {}, budgets_of(options)};
  exec::FixedBytes fixed;
  fixed[mem::Space::kDevice] = cpu::workspace_bytes(options.threads);
  fixed[mem::Space::kHost] = sample::Job::host_bytes(inputs, options.job, options.resume).peak;
  constexpr bool kDeviceIsHost = true;  // the CPU backend
  if (options.schedule.empty()) {
    plan.session.dials =
        exec::choose_dials(checkpoint, layout, plan.session, kDeviceIsHost, fixed, plan.budgets);
  } else {
    exec::require_fit(checkpoint, layout, plan.session, kDeviceIsHost, fixed, plan.budgets);
  }
  plan.footprint = exec::measure_footprint(checkpoint, layout, plan.session, kDeviceIsHost, fixed);
  return plan;
}

// The plan has been found to fit; the accountant holds the run to it.
void enforce(const Plan& plan, mem::Accountant& accountant) {
  accountant.set_budget(mem::Space::kDevice,
                        plan.budgets.bytes[static_cast<std::size_t>(mem::Space::kDevice)]);
  if (plan.budgets.ram_bytes == mem::kUnlimited) return;
  const std::int64_t pinned = plan.footprint.peak_bytes(mem::Space::kPinned);
  accountant.set_budget(mem::Space::kPinned, pinned);
  accountant.set_budget(mem::Space::kHost, plan.budgets.ram_bytes - pinned);
}

void refuse_overwriting(const Options& options) {
  for (const std::string& input : {options.model, options.inputs})
    if (fs::exists(options.output) && fs::equivalent(options.output, input))
      fail(Status::kInvalidArgument, "{}: is read by this run and cannot be its output", options.output);
}

class SamplingRun {
 public:
  explicit SamplingRun(const Options& options)
      : options_(options),
        checkpoint_(checkpoint::Checkpoint::open(options.model, {options.allow_trailing_bytes})),
        inputs_(sample::Inputs::open(options.inputs, checkpoint_.spec())),
        layout_(inputs_.job()),
        state_path_(sample::state_path(options.output)),
        settings_(sample::describe(options.job)) {
    settings_["model"] = sample::header_fingerprint(checkpoint_.file());
    settings_["inputs"] = sample::content_fingerprint(inputs_.file());
  }

  int execute() {
    refuse_overwriting(options_);
    reserve_disk();
    plan_ = make_plan(options_, checkpoint_, inputs_, layout_);
    enforce(*plan_, accountant_);
    announce();
    try {
      compute();
    } catch (const Interrupted&) {
      return report_interrupt();
    }
    report();
    return 0;
  }

 private:
  std::uint64_t latent_bytes() const {
    return static_cast<std::uint64_t>(inputs_.video_shape().elements() + inputs_.audio_shape().elements()) *
           sizeof(float);
  }

  // Room for the output, the state and its successor, and a directory that lets us write: found out now.
  void reserve_disk() const { io::OutputFile(options_.output).reserve(3 * latent_bytes() + kHeaderRoom); }

  void announce() const {
    fmt::print(stderr, "{}: {} blocks, {} tokens, {}\n", fs::path(options_.model).filename().string(),
               checkpoint_.spec().layers, layout_.tokens(), plan_->session.dials.describe());
    if (!options_.resume && fs::exists(state_path_))
      fmt::print(stderr, "{}: the state of an earlier run will be replaced; --resume would continue it\n",
                 state_path_);
  }

  void compute() {
    const InterruptGuard guard;
    const auto backend = cpu::make_backend(options_.threads, accountant_);
    sample::Job job(inputs_, options_.job, options_.resume, accountant_);
    if (options_.resume) sample::load_state(state_path_, job.sampler(), settings_);
    first_step_ = steps_done_ = job.sampler().steps_done();
    if (!job.sampler().done()) sample_steps(*backend, job);
    write_output(job.sampler());
    fs::remove(state_path_);
  }

  void sample_steps(kernels::Backend& backend, sample::Job& job) {
    sample::EulerSampler& sampler = job.sampler();
    exec::Session session(backend, accountant_, checkpoint_, layout_, plan_->session);
    session.set_conditioning({job.text(), job.visual_rows(), job.audio_rows()});
    Progress progress(sampler.steps_done(), sampler.num_steps());
    session.on_block([&](std::int64_t block_idx, std::int64_t layers) {
      InterruptGuard::check();
      progress.block_done(block_idx + 1, layers);
    });
    while (!sampler.done()) {
      InterruptGuard::check();
      sampler.step([&](const float* video, const float* audio, float sigma, float* video_velocity,
                       float* audio_velocity) {
        session.forward(video, audio, sigma, video_velocity, audio_velocity);
      });
      sample::save_state(state_path_, sampler, settings_);
      steps_done_ = sampler.steps_done();
      progress.step_done();
    }
    seconds_ = progress.seconds();
    seconds_per_step_ = progress.seconds_per_step();
  }

  // Metadata holds what decides the bits and nothing else: equal results are equal files, whatever the plan
  // was.
  void write_output(sample::EulerSampler& sampler) const {
    const spec::VideoShape v = inputs_.video_shape();
    const spec::AudioShape a = inputs_.audio_shape();
    sample::Settings metadata = settings_;
    metadata["h3stream"] = H3S_VERSION;
    io::SafetensorsWriter writer(options_.output,
                                 {{"video", DType::kF32, {1, v.channels, v.t, v.h, v.w}},
                                  {"audio", DType::kF32, {1, a.channels, 2, a.steps}}},
                                 metadata);
    writer.write(sampler.video(), static_cast<std::uint64_t>(v.elements()) * sizeof(float));
    writer.write(sampler.plain_audio(), static_cast<std::uint64_t>(a.elements()) * sizeof(float));
    writer.finish();
  }

  int report_interrupt() const {
    if (steps_done_ == 0) {
      fmt::print(stderr, "h3stream: interrupted before a step was done; nothing was kept\n");
    } else {
      fmt::print(stderr,
                 "h3stream: interrupted after step {}; run the same command with --resume to go on from {}\n",
                 steps_done_, state_path_);
    }
    return kInterruptedExit;
  }

  void report() const {
    const MemoryTable memory = measure_memory(plan_->footprint, accountant_, plan_->budgets);
    if (!options_.as_json) {
      fmt::print("{}: {} steps in {} ({:.2f} s/step), {}\n\n{}", options_.output, steps_done_ - first_step_,
                 format_duration(seconds_), seconds_per_step_, plan_->session.dials.describe(),
                 memory.text());
      return;
    }
    const nlohmann::json out = {{"output", options_.output},
                                {"settings", settings_},
                                {"plan", plan_->session.dials.describe()},
                                {"tokens", layout_.tokens()},
                                {"first_step", first_step_},
                                {"steps_done", steps_done_},
                                {"seconds", seconds_},
                                {"seconds_per_step", seconds_per_step_},
                                {"memory", memory.json()}};
    fmt::print("{}\n", out.dump(2));
  }

  const Options& options_;
  checkpoint::Checkpoint checkpoint_;
  sample::Inputs inputs_;
  spec::Layout layout_;
  std::string state_path_;
  sample::Settings settings_;
  mem::Accountant accountant_{mem::make_heap_allocator()};
  std::optional<Plan> plan_;
  std::int64_t first_step_ = 0, steps_done_ = 0;
  double seconds_ = 0, seconds_per_step_ = 0;
};

int execute(Options& options) {
  options.job.scheduler = sample::scheduler_from_name(options.scheduler);
  options.job.compute = options.compute == "bf16" ? DType::kBF16 : DType::kF32;
  if (!options.schedule.empty()) options.dials.schedule = exec::schedule_from_name(options.schedule);
  return SamplingRun(options).execute();
}

void add_files(CLI::App& command, Options& options) {
  command.add_option("-m,--model", options.model, "Checkpoint, safetensors")->required();
  command
      .add_option("-i,--inputs", options.inputs,
                  "Text states, conditions and sizes, safetensors (docs/inputs.md)")
      ->required();
  command.add_option("-o,--output", options.output, "Video and audio latents, safetensors")->required();
  command.add_flag("--resume", options.resume,
                   "Go on from OUTPUT's state file, left by a run that was stopped");
  command.add_flag("--allow-trailing-bytes", options.allow_trailing_bytes,
                   "Accept a checkpoint with bytes after its last tensor");
  command.add_flag("--json", options.as_json, "Report as JSON on stdout");
}

void add_sampling(CLI::App& command, Options& options) {
  sample::JobOptions& job = options.job;
  spec::TimestepOptions& timesteps = job.timesteps;
  const auto group = [&](const char* flag, auto& value, const char* help) {
    return command.add_option(flag, value, help)->capture_default_str()->group("Sampling");
  };
  group("--steps", job.steps, "Denoising steps")->check(CLI::Range(1, 10000));
  group("--seed", job.seed, "Noise seed, 64 bits; the noise is PyTorch's CPU noise of that seed");
  group("--scheduler", options.scheduler, "Spacing of the steps")
      ->check(CLI::IsMember({"simple", "beta", "linear_quadratic"}));
  group("--denoise", job.denoise,
        "Part of the noise to start from, above 0 to 1; below 1 needs initial latents");
  group("--shift-video", timesteps.shift_video, "Sigma shift of the video stream")
      ->check(CLI::PositiveNumber);
  group("--shift-audio", timesteps.shift_audio, "Sigma shift of the audio stream")
      ->check(CLI::PositiveNumber);
  group("--visual-cond-noise-aug", timesteps.visual_aug,
        "Share of a visual condition in its mix with noise, 0 to 1, and its timestep")
      ->check(CLI::Range(0.0, 1.0));
  group("--audio-cond-noise-aug", timesteps.audio_aug, "The same for audio conditions")
      ->check(CLI::Range(0.0, 1.0));
  group("--compute", options.compute, "Type of the activations")->check(CLI::IsMember({"bf16", "fp32"}));
}

void add_memory(CLI::App& command, Options& options) {
  const auto group = [&](const char* flag, auto& value, const char* help) {
    return command.add_option(flag, value, help)->group("Memory and speed (never change the result)");
  };
  group("--vram", options.vram, "Budget of device memory, for instance 8GiB; default unlimited");
  group("--ram", options.ram,
        "Budget of host memory, pinned included, for instance 24GiB; default unlimited");
  CLI::Option* schedule = group("--schedule", options.schedule,
                                "What stays on the device; default the first that fits the budgets")
                              ->check(CLI::IsMember({"resident", "head-groups", "flat"}));
  const auto dial = [&](const char* flag, std::int64_t& value, const char* help) {
    group(flag, value, help)->capture_default_str()->check(CLI::NonNegativeNumber)->needs(schedule);
  };
  dial("--head-group", options.dials.head_group, "Heads attended at a time; head-groups and flat");
  dial("--q-chunk", options.dials.q_chunk, "Queries attended at a time, tokens; 0 all");
  dial("--kv-chunk", options.dials.kv_chunk, "Tokens projected to q, k, v at a time; 0 all");
  dial("--mlp-chunk", options.dials.mlp_chunk, "Tokens of out_proj and MLP at a time; 0 all");
  dial("--head-chunk", options.dials.head_chunk, "Tokens of the output heads at a time; 0 all");
  dial("--min-tokens", options.dials.min_tokens, "Sequences shorter than this are not chunked");
  group("--threads", options.threads, "CPU threads; 0 as many as the machine has")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  group("--device", options.device, "Where to compute")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu"}));
}

}  // namespace

void add_run(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("run", "Denoise: from a checkpoint and an inputs file to latents");
  add_files(*command, *options);
  add_sampling(*command, *options);
  add_memory(*command, *options);
  command->footer(
      "After every step the state is saved beside OUTPUT; Ctrl-C stops between blocks and keeps it (exit "
      "code 130).");
  command->callback([options, &run] { run = [options] { return execute(*options); }; });
}

}  // namespace h3s::cli
