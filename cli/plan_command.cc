// `h3stream plan`: what a job will hold and how long it will take, before anything is downloaded or run.
#include <filesystem>
#include <memory>

#include "base/bytes.h"
#include "base/error.h"
#include "checkpoint/recipe.h"
#include "commands.h"
#include "log.h"
#include "lora_options.h"
#include "plan_report.h"
#include "sample/job.h"
#include "values.h"

namespace h3s::cli {
namespace {

constexpr std::int64_t kMaxSize = 1 << 24;  // far past what spec::Layout takes, which then says so

struct Arguments {
  plan::Clip clip;
  double audio_seconds = 0;
  std::vector<std::string> references;
  std::string model, format = "int8", form = "curve", compute = "bf16";
  std::string vram, ram, gpu = "auto", calibration;
  LoraOptions loras;
  std::int64_t steps = 0;
  bool json = false;
};

constexpr std::int64_t kCurveGrid = 1025, kCurveTimeDim = 8;  // of the pruned checkpoints

checkpoint::Checkpoint open_checkpoint(const Arguments& a) {
  if (!a.model.empty()) return checkpoint::Checkpoint::open(a.model);
  spec::ModelSpec spec;
  if (a.form == "curve") {
    spec.curve_grid = kCurveGrid;
    spec.time_dim = kCurveTimeDim;
  }
  return checkpoint::Checkpoint::without_data(spec, *checkpoint::writable_format(a.format));
}

Machine find_machine(const Arguments& a) {
  if (a.gpu == "auto" || a.gpu == "cpu") return machine_of(backend::parse_device(a.gpu, 0), a.calibration);
  if (!a.calibration.empty())
    fail(Status::kInvalidArgument, "[plan] --calibration is of this machine, --gpu {} of another", a.gpu);
  return card_machine(a.gpu);
}

class Planning {
 public:
  explicit Planning(const Arguments& arguments)
      : arguments_(arguments),
        checkpoint_(arguments.loras.apply(open_checkpoint(arguments))),
        machine_(find_machine(arguments)) {
    budgets_.device_bytes = arguments.vram.empty() ? machine_.device_bytes : parse_bytes(arguments.vram);
    if (!arguments.ram.empty()) budgets_.ram_bytes = parse_bytes(arguments.ram);
  }

  PlanReport report() const;

 private:
  plan::Request request(const spec::Layout& layout) const;

  const Arguments& arguments_;
  checkpoint::Checkpoint checkpoint_;
  Machine machine_;
  exec::Budgets budgets_;
};

plan::Request Planning::request(const spec::Layout& layout) const {
  const std::int64_t sampler = sample::Job::host_bytes(checkpoint_.spec(), layout);
  const std::int64_t workspace =
      machine_.device_is_host ? backend::workspace_bytes(backend::DeviceChoice{}) : 0;
  const auto model_bytes = static_cast<std::int64_t>(checkpoint_.file().file_bytes());
  return {.checkpoint = checkpoint_,
          .layout = layout,
          .session = {.compute = arguments_.compute == "bf16" ? DType::kBF16 : DType::kF32},
          .device_is_host = machine_.device_is_host,
          .holdings = {machine_.context(),
                       {mem::Space::kDevice, workspace, "backend's workspace"},
                       {mem::Space::kHost, sampler, "sampler and inputs"}},
          .budgets = budgets_,
          .calibration = machine_.calibration,
          .weights_cached = model_bytes <= budgets_.ram_bytes};
}

std::optional<plan::Plan> plan_of(const plan::Request& request) {
  plan::Result result = plan::make_plan(request);
  if (auto* plan = std::get_if<plan::Plan>(&result)) return std::move(*plan);
  return {};
}

PlanReport Planning::report() const {
  const plan::Clip& clip = arguments_.clip;
  const spec::Layout layout(plan::job_of(clip));
  const plan::Request asked = request(layout);
  PlanReport report{.clip = clip,
                    .tokens = layout.tokens(),
                    .audio_steps = layout.job().audio_t,
                    .steps = arguments_.steps,
                    .model = arguments_.model.empty()
                                 ? fmt::format("{}, {} blocks", arguments_.format, checkpoint_.spec().layers)
                                 : one_line(std::filesystem::path(arguments_.model).filename().string()),
                    .model_bytes = checkpoint_.file().file_bytes(),
                    .machine = machine_,
                    .budgets = budgets_,
                    .plan = plan::require_plan(asked)};
  plan::Request another = asked, roomier = asked;
  another.without = report.plan.dials.schedule;
  report.runner_up = plan_of(another);
  roomier.budgets.device_bytes = mem::kUnlimited;
  report.with_memory = plan_of(roomier);
  if (plan::time_rank(report.with_memory->time.seconds) >= plan::time_rank(report.plan.time.seconds))
    report.with_memory.reset();
  report.smallest_card = plan::smallest_card(asked);
  report.longest = plan::longest_clip(clip, [this](const spec::Layout& longer) { return request(longer); });
  return report;
}

int run_plan(Arguments& arguments, bool audio_given) {
  if (audio_given) arguments.clip.audio_seconds = arguments.audio_seconds;
  for (const std::string& text : arguments.references)
    arguments.clip.references.push_back(plan::parse_reference(text));
  const PlanReport report = Planning(arguments).report();
  fmt::print("{}", arguments.json ? json_text(report.json()) : report.text());
  return 0;
}

void add_clip(CLI::App& command, Arguments& a) {
  const auto size = [&](const char* flag, std::int64_t& value, const char* help) {
    return command.add_option(flag, value, help)->check(whole(1, kMaxSize))->group("Clip");
  };
  size("--width", a.clip.width, "Pixels, a multiple of 16")->required();
  size("--height", a.clip.height, "Pixels, a multiple of 16")->required();
  size("--frames", a.clip.frames, "Frames, 24 a second; made up to 17 k + 5")->required();
  size("--text-tokens", a.clip.text_tokens, "Tokens of text")->capture_default_str();
  command.add_option("--keyframes", a.clip.keyframes, "Pictures of the clip's size that are given")
      ->check(whole(0, 4096))
      ->capture_default_str()
      ->group("Clip");
  command
      .add_option("--refs", a.references, "References: image=1024x768 video=640x480x124 audio=5 (seconds)")
      ->check(not_empty())
      ->group("Clip");
}

void add_model(CLI::App& command, Arguments& a) {
  CLI::Option* model =
      command.add_option("-m,--model", a.model, "Checkpoint, safetensors; default: one that need not exist")
          ->check(not_empty())
          ->group("Model");
  add_lora_options(command, a.loras);
  command
      .add_option("--format", a.format,
                  "Weights of the block linears without --model; int8 is int8_tensorwise with ConvRot")
      ->check(CLI::IsMember(checkpoint::synthetic_format_names()))
      ->capture_default_str()
      ->excludes(model)
      ->group("Model");
  command.add_option("--form", a.form, "Timestep form without --model: curve (pruned) or full")
      ->check(CLI::IsMember({"curve", "full"}))
      ->capture_default_str()
      ->excludes(model)
      ->group("Model");
  command.add_option("--compute", a.compute, "Type of the activations")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str()
      ->group("Model");
}

void add_machine(CLI::App& command, Arguments& a) {
  const auto text = [&](const char* flag, std::string& value, const std::string& help) {
    return command.add_option(flag, value, help)->check(not_empty())->group("Machine");
  };
  text("--gpu", a.gpu, "auto (this machine's), cpu, or a card of the table: " + plan::card_names())
      ->capture_default_str();
  const auto budget = [&](const char* flag, std::string& value, const char* help) {
    command.add_option(flag, value, help)->check(byte_count())->group("Machine");
  };
  budget("--vram", a.vram, "Budget of device memory, for instance 16GiB; default what the card has");
  budget("--ram", a.ram, "Budget of host memory, pinned included, for instance 32GiB; default unlimited");
  text("--calibration", a.calibration, "Rates of this machine, written by `calibrate`");
}

}  // namespace

void add_plan(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      "plan", "Say what a clip needs and how long a step takes, on this or another machine");
  auto arguments = std::make_shared<Arguments>();
  add_clip(*command, *arguments);
  CLI::Option* audio = command
                           ->add_option("--audio-seconds", arguments->audio_seconds,
                                        "Length of the audio, seconds; default the video's")
                           ->check(above(0, 1e5))
                           ->group("Clip");
  add_model(*command, *arguments);
  add_machine(*command, *arguments);
  command->add_option("--steps", arguments->steps, "Denoising steps, for the total time")
      ->check(whole(1, 10000));
  command->add_flag("--json", arguments->json, "Report as JSON on stdout");
  command->callback([arguments, audio, &run] {
    run = [arguments, audio] { return run_plan(*arguments, audio->count() > 0); };
  });
}

}  // namespace h3s::cli
