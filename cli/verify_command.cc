// h3stream verify: reference files and plan equality.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "backend/select.h"
#include "base/bytes.h"
#include "base/error.h"
#include "commands.h"
#include "log.h"
#include "lora_options.h"
#include "values.h"
#include "verify/verify.h"

namespace h3s::cli {
namespace {

using nlohmann::json;

// Of a random job; byte counts of every activation then stay below 2^63.
constexpr std::int64_t kMaxTokens = 1 << 24, kMaxLatent = 1 << 16;

struct Options {
  std::vector<std::string> golden;
  std::string model;
  std::string plans = "some";
  bool as_json = false;
  std::string compute = "bf16", device = "auto";
  bool reference = false;
  verify::RandomJob random;
  LoraOptions loras;
};

// The files named, and every .safetensors of the folders named, sorted.
std::vector<std::string> expand(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const std::size_t first = files.size();
    for (const auto& entry : std::filesystem::directory_iterator(path))
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
    if (files.size() == first) fail(Status::kInvalidArgument, "{}: holds no .safetensors file", path);
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(first), files.end());
  }
  return files;
}

json to_json(const verify::Report& report) {
  json out{{"path", report.path}, {"ok", report.ok()}, {"skipped", report.skipped}};
  for (const verify::Check& c : report.checks)
    out["checks"].push_back({{"name", c.name},
                             {"elements", c.elements},
                             {"our_error", c.our_error},
                             {"stock_error", c.stock_error},
                             {"ratio", c.ratio()},
                             {"distance", c.distance},
                             {"ok", c.ok},
                             {"rule", c.rule}});
  for (const verify::PlanResult& p : report.plans)
    out["plans"].push_back({{"plan", p.plan.describe()},
                            {"equal", p.equal},
                            {"difference", p.difference},
                            {"peak_device_bytes", p.peak_bytes[0]},
                            {"peak_pinned_bytes", p.peak_bytes[1]},
                            {"peak_host_bytes", p.peak_bytes[2]}});
  return out;
}

std::string number(double value) {
  return value > 0 ? fmt::format("{:.3e}", value) : "-";
}

void print_checks(const verify::Report& report) {
  if (report.checks.empty()) return;
  fmt::print("  {:<18}{:>10}{:>12}{:>12}{:>8}{:>12}  \n", "tensor", "elements", "our error", "stock's",
             "ratio", "distance");
  for (const verify::Check& c : report.checks)
    fmt::print("  {:<18}{:>10}{:>12}{:>12}{:>8}{:>12}  {:<4}  {}\n", c.name, c.elements, number(c.our_error),
               number(c.stock_error), c.stock_error > 0 ? fmt::format("{:.3f}", c.ratio()) : "-",
               number(c.distance), c.ok ? "OK" : "FAIL", c.rule);
}

void print_plans(const verify::Report& report) {
  const auto unequal =
      std::count_if(report.plans.begin(), report.plans.end(), [](const auto& p) { return !p.equal; });
  fmt::print("  plans: {} run, {}\n", report.plans.size(),
             unequal == 0 ? "all bits equal" : fmt::format("{} DIFFER from the first", unequal));
  for (const verify::PlanResult& p : report.plans)
    fmt::print("    {:<5} device {:>11}  pinned {:>11}  {}{}\n", p.equal ? "equal" : "FAIL",
               format_bytes(p.peak_bytes[0]), format_bytes(p.peak_bytes[1]), p.plan.describe(),
               p.equal ? "" : ": " + p.difference);
}

void print(const verify::Report& report) {
  if (!report.skipped.empty()) {
    fmt::print("{}\n  SKIP  {}\n\n", one_line(report.path), one_line(report.skipped));
    return;
  }
  fmt::print("{}\n", one_line(report.path));
  print_checks(report);
  print_plans(report);
  fmt::print("  {}\n\n", report.ok() ? "OK" : "FAIL");
  std::fflush(stdout);
}

verify::Report verify_one(const std::string& path, const std::vector<verify::NamedPlan>& plans,
                          const backend::DeviceChoice& device, bool named) {
  const auto progress = [](const std::string& line) { log("{}", line); };
  try {
    return verify::verify_golden(path, plans, progress, device);
  } catch (const Error& e) {
    // A folder may hold other files beside references; a file that was named must be one.
    if (named || e.status() != Status::kBadFile) throw;
    return {.path = path, .skipped = e.what()};
  }
}

std::vector<verify::Report> collect(const Options& options, const std::vector<verify::NamedPlan>& plans,
                                    const backend::DeviceChoice& device) {
  std::vector<verify::Report> reports;
  for (const std::string& path : expand(options.golden)) {
    const bool named = std::find(options.golden.begin(), options.golden.end(), path) != options.golden.end();
    reports.push_back(verify_one(path, plans, device, named));
    if (!options.as_json) print(reports.back());
  }
  if (!options.model.empty()) {
    verify::RandomJob random = options.random;
    random.compute = options.compute == "fp32" ? DType::kF32 : DType::kBF16;
    reports.push_back(verify::verify_model(
        options.loras.apply(checkpoint::Checkpoint::open(options.model)), random, plans,
        [](const std::string& line) { log("{}", line); }, device));
    if (!options.as_json) print(reports.back());
  }
  return reports;
}

int run_verify(const Options& options) {
  if (options.golden.empty() && options.model.empty())
    fail(Status::kInvalidArgument, "[verify] expected --golden PATH... or --model FILE");
  if (options.model.empty() && !options.loras.files.empty())
    fail(Status::kInvalidArgument, "[verify] --lora needs --model");
  const spec::JobSpec& job = options.random.job;
  if (job.latent_t * job.latent_h * job.latent_w > 4 * kMaxTokens)  // 2 x 2 values a token
    fail(Status::kInvalidArgument, "[verify] {} x {} x {} latents are more than {} tokens", job.latent_t,
         job.latent_h, job.latent_w, kMaxTokens);
  backend::DeviceChoice device = backend::parse_device(options.device, /*threads=*/0);
  device.reference = options.reference;
  log("computing on {}", backend::describe(device));
  const std::vector<verify::Report> reports = collect(options, verify::plan_list(options.plans), device);
  const auto failed = std::count_if(reports.begin(), reports.end(), [](const auto& r) { return !r.ok(); });
  const auto skipped =
      std::count_if(reports.begin(), reports.end(), [](const auto& r) { return !r.skipped.empty(); });
  if (options.as_json) {
    json out{{"ok", failed == 0}, {"device", backend::describe(device)}, {"files", json::array()}};
    for (const verify::Report& report : reports) out["files"].push_back(to_json(report));
    fmt::print("{}", json_text(out));
  } else {
    fmt::print("{} checked, {} failed, {} skipped\n", static_cast<std::int64_t>(reports.size()) - skipped,
               failed, skipped);
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("verify", "Check results against reference files, and every plan against the first");
  command->add_option("--golden", options->golden, "Reference files, or folders of them")->check(not_empty());
  command->add_option("--model", options->model, "A checkpoint: run a random job under every plan")
      ->check(not_empty());
  add_lora_options(*command, options->loras);
  command->add_option("--plans", options->plans, "Plans to compare: few (3), some (8), all (29)")
      ->capture_default_str()
      ->check(CLI::IsMember({"few", "some", "all"}));
  command->add_option("--device", options->device, "Where to compute: auto, cpu or cuda:N")
      ->check(not_empty())
      ->capture_default_str();
  command->add_flag("--reference", options->reference,
                    "On a GPU: linears and attention by the plain kernels that have the CPU's bits");
  command->add_option("--compute", options->compute, "With --model: type of activations, bf16 or fp32")
      ->capture_default_str()
      ->check(CLI::IsMember({"bf16", "fp32"}));
  spec::JobSpec& job = options->random.job;
  const auto size = [&](const char* flag, std::int64_t& value, std::int64_t most, const char* help) {
    command->add_option(flag, value, help)->capture_default_str()->check(whole(1, most));
  };
  size("--text-len", job.text_len, kMaxTokens, "With --model: text tokens");
  size("--latent-t", job.latent_t, kMaxLatent, "With --model: latent frames");
  size("--latent-h", job.latent_h, kMaxLatent, "With --model: latent rows");
  size("--latent-w", job.latent_w, kMaxLatent, "With --model: latent columns");
  size("--audio-t", job.audio_t, kMaxTokens, "With --model: audio latent steps");
  add_seed(*command, "--seed", options->random.seed, "With --model: seed of the random inputs");
  command->add_option("--sigma", options->random.sigma, "With --model: noise level, 0 to 1")
      ->capture_default_str()
      ->check(within(0, 1));
  command->add_flag("--json", options->as_json, "Print one JSON object instead of tables");
  command->callback([options, &run] { run = [options] { return run_verify(*options); }; });
}

}  // namespace h3s::cli
