// `h3stream run`: from noise to latents.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "backend/select.h"
#include "base/error.h"
#include "commands.h"
#include "exec/footprint.h"
#include "exec/session.h"
#include "interrupt.h"
#include "io/output_file.h"
#include "log.h"
#include "memory_table.h"
#include "progress.h"
#include "run_ledger.h"
#include "run_options.h"

namespace h3s::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kHeaderRoom = 64 << 10;  // more than the headers of an output and two state files

// What the run will hold and by which dials, before anything of size is allocated.
struct Plan {
  exec::SessionOptions session;
  exec::Footprint footprint;
  exec::Budgets budgets;
};

Plan make_plan(const RunOptions& options, const checkpoint::Checkpoint& checkpoint,
               const sample::Inputs& inputs, const spec::Layout& layout) {
  Plan plan{{options.job.compute, options.dials, options.job.timesteps}, {}, options.budgets};
  exec::FixedBytes fixed;
  fixed[mem::Space::kDevice] = backend::workspace_bytes(options.where);
  fixed[mem::Space::kHost] = sample::Job::host_bytes(inputs, options.job, options.resume).peak;
  const bool device_is_host = backend::device_is_host(options.where);
  if (options.schedule.empty()) {
    plan.session.dials =
        exec::choose_dials(checkpoint, layout, plan.session, device_is_host, fixed, plan.budgets);
  } else {
    exec::require_fit(checkpoint, layout, plan.session, device_is_host, fixed, plan.budgets);
  }
  plan.footprint = exec::measure_footprint(checkpoint, layout, plan.session, device_is_host, fixed);
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

void warn(const std::string& line) {
  log("h3stream: {}", line);
}

void refuse_overwriting(const RunOptions& options) {
  const std::string state = sample::state_path(options.output);
  std::error_code error;  // ignored: a file that is not there is no other file
  for (const std::string& input : {options.model, options.inputs}) {
    if (fs::equivalent(options.output, input, error))
      fail(Status::kInvalidArgument, "{}: cannot be the output of a run that reads it, {}", options.output,
           input);
    if (fs::equivalent(state, input, error))
      fail(Status::kInvalidArgument, "{}: cannot be the state file of a run that reads it, {}", state, input);
  }
}

// The state is written over and over, under names that get longer: see io::OutputFile.
void refuse_long_name(const std::string& state) {
  constexpr std::size_t kTemporarySuffix = 24;  // ".PID.N.tmp" with ten and eight digits
  const fs::path path(state);
  const long most = ::pathconf(path.has_parent_path() ? path.parent_path().c_str() : ".", _PC_NAME_MAX);
  if (most > 0 && path.filename().native().size() + kTemporarySuffix > static_cast<std::size_t>(most))
    fail(Status::kInvalidArgument, "{}: the name is longer than the {} bytes that leave room for a suffix",
         state, most - static_cast<long>(kTemporarySuffix));
}

class SamplingRun {
 public:
  explicit SamplingRun(const RunOptions& options)
      : options_(options),
        checkpoint_(checkpoint::Checkpoint::open(options.model, {options.allow_trailing_bytes})),
        inputs_(sample::Inputs::open(options.inputs, checkpoint_.spec())),
        layout_(inputs_.job()),
        state_path_(sample::state_path(options.output)),
        settings_(sample::describe(options.job)) {
    settings_["model"] = sample::header_fingerprint(checkpoint_.file());
    settings_["inputs"] = sample::content_fingerprint(inputs_.file());
    if (!options.where.on_cpu()) settings_["kernels"] = backend::kernels_name(options.where);
  }

  int execute() {
    const sample::SamplerOptions sampler = sample::Job::check(inputs_, options_.job);
    if (options_.resume) sample::check_state(state_path_, sampler, settings_);
    plan_ = make_plan(options_, checkpoint_, inputs_, layout_);
    enforce(*plan_, accountant_);
    reserve_disk();
    if (!options_.ledger.empty()) ledger_directory_.emplace(options_.ledger);
    announce();
    try {
      compute();
    } catch (const Interrupted& interrupted) {
      report_interrupt();
      return interrupted.exit_code();
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
  void reserve_disk() const {
    refuse_long_name(state_path_);
    const io::OutputFile state(state_path_);
    io::OutputFile(options_.output).reserve(3 * latent_bytes() + kHeaderRoom);
  }

  void announce() const {
    log("{}: {} blocks, {} tokens, {}, on {}", fs::path(options_.model).filename().string(),
        checkpoint_.spec().layers, layout_.tokens(), plan_->session.dials.describe(),
        backend::describe(options_.where));
    if (!options_.resume && fs::exists(state_path_))
      log("{}: the state of an earlier run will be replaced; --resume would continue it", state_path_);
  }

  void compute() {
    const InterruptGuard guard;
    const std::unique_ptr<kernels::Backend> engine = backend::make_backend(options_.where, accountant_);
    sample::Job job(inputs_, options_.job, options_.resume, accountant_);
    if (options_.resume) sample::load_state(state_path_, job.sampler(), settings_);
    first_step_ = steps_done_ = job.sampler().steps_done();
    sigmas_ = job.sampler().options().sigmas;
    if (!job.sampler().done()) run_steps(*engine, job);
    write_output(job.sampler());
    fs::remove(state_path_);
  }

  void run_steps(kernels::Backend& engine, sample::Job& job) {
    if (!ledger_directory_) return sample_steps(engine, job, nullptr);
    RunLedger ledger(*ledger_directory_, ledger_header(engine, job.sampler()),
                     {.backend = engine,
                      .accountant = accountant_,
                      .device = device_reader(options_.where),
                      .warn = warn});
    ledger.record(steps_done_, [&] { sample_steps(engine, job, &ledger); });
  }

  ledger::Header ledger_header(const kernels::Backend& engine, const sample::EulerSampler& sampler) const {
    ledger::Header header = make_header(options_.where, plan_->footprint, plan_->budgets);
    header.model = fs::path(options_.model).filename().string();
    header.plan = plan_->session.dials.describe();
    header.backend = engine.name();
    header.settings = settings_;
    header.tokens = layout_.tokens();
    header.blocks = checkpoint_.spec().layers;
    header.steps = sampler.num_steps();
    header.first_step = sampler.steps_done();
    return header;
  }

  // `ledger` may be null.
  void sample_steps(kernels::Backend& engine, sample::Job& job, RunLedger* ledger) {
    sample::EulerSampler& sampler = job.sampler();
    exec::Session session(engine, accountant_, checkpoint_, layout_, plan_->session);
    if (ledger != nullptr) session.add_observer(ledger->observer());
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
      if (ledger != nullptr) ledger->step_done();
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

  void report_interrupt() const {
    if (steps_done_ == 0)
      log("h3stream: interrupted before a step was done; nothing was kept");
    else
      log("h3stream: interrupted after step {}; run the same command with --resume to go on from {}",
          steps_done_, state_path_);
  }

  void report() const {
    const MemoryTable memory = measure_memory(plan_->footprint, accountant_, plan_->budgets);
    if (!options_.as_json) {
      fmt::print("{}: {} steps in {} ({:.2f} s/step), {}\n\n{}", one_line(options_.output),
                 steps_done_ - first_step_, format_duration(seconds_), seconds_per_step_,
                 plan_->session.dials.describe(), memory.text());
      if (ledger_directory_) fmt::print("\nledger: {}\n", one_line(ledger_directory_->page_path()));
      return;
    }
    nlohmann::json out = {{"output", options_.output},
                          {"settings", settings_},
                          {"plan", plan_->session.dials.describe()},
                          {"tokens", layout_.tokens()},
                          {"sigmas", sigmas_},
                          {"first_step", first_step_},
                          {"steps_done", steps_done_},
                          {"seconds", seconds_},
                          {"seconds_per_step", seconds_per_step_},
                          {"memory", memory.json()},
                          {"device", backend::describe(options_.where)}};
    if (ledger_directory_) out["ledger"] = options_.ledger;
    fmt::print("{}", json_text(out));
  }

  const RunOptions& options_;
  checkpoint::Checkpoint checkpoint_;
  sample::Inputs inputs_;
  spec::Layout layout_;
  std::string state_path_;
  sample::Settings settings_;
  mem::Accountant accountant_{backend::make_allocator(options_.where, warn)};
  std::optional<Plan> plan_;
  std::optional<ledger::Directory> ledger_directory_;
  std::vector<float> sigmas_;
  std::int64_t first_step_ = 0, steps_done_ = 0;
  double seconds_ = 0, seconds_per_step_ = 0;
};

}  // namespace

void add_run(CLI::App& app, Run& run) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Denoise: from a checkpoint and an inputs file to latents");
  add_run_options(*command, *options);
  command->callback([options, &run] {
    run = [options] {
      refuse_overwriting(*options);
      options->resolve();
      return SamplingRun(*options).execute();
    };
  });
}

}  // namespace h3s::cli
