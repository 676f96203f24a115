// `h3stream run`: from noise to latents.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "backend/select.h"
#include "base/bytes.h"
#include "base/error.h"
#include "checkpoint/findings.h"
#include "commands.h"
#include "exec/replan.h"
#include "exec/session.h"
#include "exec/trace.h"
#include "interrupt.h"
#include "io/output_file.h"
#include "log.h"
#include "machine.h"
#include "memory_table.h"
#include "memory_watch.h"
#include "plan/plan.h"
#include "progress.h"
#include "run_ledger.h"
#include "run_options.h"

namespace h3s::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kHeaderRoom = 64 << 10;  // more than the headers of an output and two state files

void warn(const std::string& line) {
  log("h3stream: {}", line);
}

// What the run will hold, by which dials and for how long, before anything of size is allocated.
struct RunPlan {
  exec::SessionOptions session;
  plan::Plan plan;
  exec::Budgets budgets;
  std::int64_t context_bytes = 0;
  bool weights_cached = true;  // the checkpoint stays in the page cache between steps
};

RunPlan make_run_plan(const RunOptions& options, const checkpoint::Checkpoint& checkpoint,
                      const sample::Inputs& inputs, const spec::Layout& layout) {
  const Machine machine = machine_of(options.where, options.calibration);
  const std::int64_t sampler = sample::Job::host_bytes(inputs, options.job, options.resume).peak;
  plan::Request request{
      .checkpoint = checkpoint,
      .layout = layout,
      .session = {options.job.compute, options.dials, options.job.timesteps, warn},
      .device_is_host = machine.device_is_host,
      .holdings = {machine.context(),
                   {mem::Space::kDevice, backend::workspace_bytes(options.where), "backend's workspace"},
                   {mem::Space::kHost, sampler, "sampler and inputs"}},
      .budgets = options.budgets,
      .calibration = machine.calibration,
      .weights_cached = file_stays_cached(checkpoint.file().file_bytes(), sampler),
      .dials_given = !options.schedule.empty()};
  if (options.budgets.device_bytes == mem::kUnlimited && options.vram.empty())
    request.budgets.device_bytes = machine.device_bytes;
  RunPlan run{request.session, plan::require_plan(request), request.budgets, machine.context_bytes(),
              request.weights_cached};
  run.session.dials = run.plan.dials;
  return run;
}

// The plan has been found to fit; the accountant holds the run to it.
void enforce(const RunPlan& plan, mem::Accountant& accountant) {
  const exec::Budgets& budgets = plan.budgets;
  if (budgets.device_bytes != mem::kUnlimited)
    accountant.set_budget(mem::Space::kDevice, budgets.device_bytes - plan.context_bytes);
  if (budgets.ram_bytes == mem::kUnlimited) return;
  const std::int64_t pinned = plan.plan.footprint.peak_bytes(mem::Space::kPinned);
  accountant.set_budget(mem::Space::kPinned, pinned);
  accountant.set_budget(mem::Space::kHost, budgets.ram_bytes - pinned);
}

// What the run reads and must not write over.
std::vector<std::string> files_read(const RunOptions& options) {
  std::vector<std::string> files{options.model, options.inputs};
  for (const checkpoint::LoraRequest& lora : options.loras.requests()) files.push_back(lora.path);
  return files;
}

void refuse_overwriting(const RunOptions& options) {
  const std::string state = sample::state_path(options.output);
  const std::vector<std::string> inputs = files_read(options);
  std::vector<std::string> used = inputs;
  used.insert(used.end(), {options.output, state});
  if (!options.trace.empty())
    for (const std::string& other : used)
      if (std::error_code error; options.trace == other || fs::equivalent(options.trace, other, error))
        fail(Status::kInvalidArgument, "{}: cannot be the trace of a run that uses it as {}", options.trace,
             other);
  std::error_code error;  // ignored: a file that is not there is no other file
  for (const std::string& input : inputs) {
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

nlohmann::json traffic_json(const exec::Traffic& traffic) {
  nlohmann::json out = {{"to_device_bytes", traffic.up_bytes()},
                        {"from_device_bytes", traffic.down_bytes()},
                        {"of", nlohmann::json::array()}};
  for (const exec::TrafficLine& line : traffic.lines)
    out["of"].push_back(
        {{"what", line.what}, {"to_device_bytes", line.up_bytes}, {"from_device_bytes", line.down_bytes}});
  return out;
}

class SamplingRun {
 public:
  explicit SamplingRun(const RunOptions& options)
      : options_(options),
        checkpoint_(
            options.loras.apply(checkpoint::Checkpoint::open(options.model, {options.allow_trailing_bytes}))),
        inputs_(sample::Inputs::open(options.inputs, checkpoint_.spec())),
        layout_(inputs_.job()),
        state_path_(sample::state_path(options.output)),
        settings_(sample::describe(options.job)) {
    settings_["model"] = sample::header_fingerprint(checkpoint_.file());
    if (const checkpoint::LoraSet* loras = checkpoint_.loras()) {
      settings_["loras"] = lora_settings(*loras);
      settings_["lora_mode"] = checkpoint::lora_mode_name(loras->mode());
    }
    settings_["inputs"] = sample::content_fingerprint(inputs_.file());
    if (!options.where.on_cpu()) settings_["kernels"] = backend::kernels_name(options.where);
  }

  int execute() {
    const sample::SamplerOptions sampler = sample::Job::check(inputs_, options_.job);
    if (options_.resume) {
      if (std::error_code error; !fs::exists(state_path_, error))
        fail(Status::kIo, "{}: no such file: there is no state to resume from; run without --resume",
             state_path_);
      sample::check_state(state_path_, sampler, settings_);
    }
    plan_ = make_run_plan(options_, checkpoint_, inputs_, layout_);
    enforce(*plan_, accountant_);
    reserve_disk();
    if (!options_.ledger.empty()) ledger_directory_.emplace(options_.ledger);
    announce();
    start_trace();
    try {
      compute();
    } catch (const Interrupted& interrupted) {
      finish_trace();
      report_interrupt();
      return interrupted.exit_code();
    }
    finish_trace();
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
    for (const std::string& line : options_.idle_dials(checkpoint_.spec())) warn(line);
    if (!plan_->weights_cached)
      warn(fmt::format("{}: larger than the memory of this machine: each step reads it from the disk",
                       options_.model));
    for (const checkpoint::Finding& finding : checkpoint::quick_warnings(checkpoint_))
      warn(fmt::format("{}: {}", options_.model, finding.text));
    if (!options_.resume && fs::exists(state_path_))
      log("{}: the state of an earlier run will be replaced; --resume would continue it", state_path_);
  }

  void start_trace() {
    if (options_.trace.empty()) return;
    trace_.emplace(options_.trace);
    accountant_.observe([this](const mem::MemoryEvent& event) { trace_->memory(event); });
  }

  // By now everything has been given back.
  void finish_trace() {
    if (!trace_) return;
    accountant_.observe({});
    trace_->finish();
  }

  void compute() {
    const InterruptGuard guard;
    watch_.emplace(options_.where);
    const std::unique_ptr<kernels::Backend> engine = backend::make_backend(options_.where, accountant_);
    sample::Job job(inputs_, options_.job, options_.resume, accountant_);
    if (options_.resume) sample::load_state(state_path_, job.sampler(), settings_);
    first_step_ = steps_done_ = job.sampler().steps_done();
    sigmas_ = job.sampler().options().sigmas;
    std::optional<exec::TracingBackend> traced;
    if (trace_) traced.emplace(*engine, *trace_);
    if (!job.sampler().done()) run_steps(traced ? *traced : *engine, job);
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
    ledger::Header header = make_header(options_.where, plan_->plan.footprint, plan_->budgets);
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

  std::unique_ptr<exec::Session> open_session(kernels::Backend& engine) {
    return exec::build_or_replan(
        [&] {
          return std::make_unique<exec::Session>(engine, accountant_, checkpoint_, layout_, plan_->session);
        },
        [&](const mem::Refused& refused) { return replan(refused); });
  }

  // With what the device has now, which is what is free and what the run holds already. False when that is
  // not less than was planned with.
  bool replan(const mem::Refused& refused) {
    const std::int64_t free_bytes = backend::default_device_budget(options_.where);
    if (free_bytes == mem::kUnlimited) return false;
    RunOptions now = options_;
    now.budgets = plan_->budgets;
    std::int64_t& budget = now.budgets.device_bytes;
    budget = std::min(
        budget, free_bytes + accountant_.report(mem::Space::kDevice).reserved_bytes + plan_->context_bytes);
    if (budget >= plan_->plan.footprint.device_bytes()) return false;
    warn(fmt::format("{}; planning again with the {} there are now", refused.what(), format_bytes(budget)));
    plan_ = make_run_plan(now, checkpoint_, inputs_, layout_);
    enforce(*plan_, accountant_);
    log("now {}", plan_->session.dials.describe());
    return true;
  }

  // `ledger` may be null.
  void sample_steps(kernels::Backend& engine, sample::Job& job, RunLedger* ledger) {
    sample::EulerSampler& sampler = job.sampler();
    const std::unique_ptr<exec::Session> held = open_session(engine);
    exec::Session& session = *held;
    session.add_observer(*watch_);
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
      traffic_ = session.last_traffic();
      dials_ = session.dials();
      effective_dials_ = session.effective_dials();
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
    const MemoryTable memory =
        measure_memory(plan_->plan.footprint, accountant_, plan_->budgets, plan_->context_bytes);
    if (!options_.as_json) {
      fmt::print("{}: {} steps in {} ({:.2f} s/step), {}\n\n{}{}", one_line(options_.output),
                 steps_done_ - first_step_, format_duration(seconds_), seconds_per_step_,
                 plan_->session.dials.describe(), memory.text(), watch_->text());
      if (effective_dials_.describe() != dials_.describe())
        fmt::print("\nrefused memory on the way: {} instead of {}\n", effective_dials_.describe(),
                   dials_.describe());
      if (ledger_directory_) fmt::print("\nledger: {}\n", one_line(ledger_directory_->page_path()));
      return;
    }
    const plan::Estimate& planned = plan_->plan.time;
    nlohmann::json out = {
        {"output", options_.output},
        {"settings", settings_},
        {"plan", plan_->session.dials.describe()},
        {"planned_seconds_per_step", planned.seconds},
        {"planned_seconds", planned.setup_seconds + (steps_done_ - first_step_) * planned.seconds},
        {"dials", dials_.describe()},
        {"effective_dials", effective_dials_.describe()},
        {"tokens", layout_.tokens()},
        {"sigmas", sigmas_},
        {"first_step", first_step_},
        {"steps_done", steps_done_},
        {"seconds", seconds_},
        {"seconds_per_step", seconds_per_step_},
        {"memory", memory.json()},
        {"seen", watch_->json()},
        {"planned_traffic_bytes", planned.host_traffic_bytes},
        {"traffic_per_step", traffic_json(traffic_)},
        {"device", backend::describe(options_.where)}};
    if (ledger_directory_) out["ledger"] = options_.ledger;
    if (const checkpoint::LoraSet* loras = checkpoint_.loras()) out["loras"] = lora_json(*loras);
    fmt::print("{}", json_text(out));
  }

  const RunOptions& options_;
  checkpoint::Checkpoint checkpoint_;
  sample::Inputs inputs_;
  spec::Layout layout_;
  std::string state_path_;
  sample::Settings settings_;
  mem::Accountant accountant_{backend::make_allocator(options_.where, warn)};
  std::optional<RunPlan> plan_;
  std::optional<MemoryWatch> watch_;
  std::optional<ledger::Directory> ledger_directory_;
  std::optional<exec::Trace> trace_;
  exec::Traffic traffic_;  // of the last step
  exec::Dials dials_, effective_dials_;
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
