#include "bench.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "comparators.h"
#include "context.h"
#include "nvml.h"

namespace h3s::bench {
namespace {

using nlohmann::json;

struct Group {
  const char* name;
  void (*run)(Context&);
};

constexpr std::array<Group, 5> kCpuGroups{{{"linear", bench_linear},
                                           {"int8", bench_int8},
                                           {"attention", bench_attention},
                                           {"rows", bench_rows},
                                           {"block", bench_block}}};
constexpr std::array<Group, 5> kGpuGroups{{{"linear", bench_device_linear},
                                           {"int8", bench_device_int8},
                                           {"attention", bench_device_attention},
                                           {"rows", bench_device_rows},
                                           {"block", bench_block}}};

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : -1;
}

void check_filter(const std::string& filter) {
  std::string names;
  for (const Group& group : kCpuGroups) {  // a GPU's have the same names
    if (filter.empty() || filter == group.name) return;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", group.name);
  }
  fail(Status::kInvalidArgument, "[bench] filter must be one of {}, got {}", names, filter);
}

// A group that fails leaves its reason in `failed`, and what it and the others measured stays.
void run_group(const Group& group, Context& context, json& failed) {
  try {
    group.run(context);
  } catch (const Error& e) {
    failed.push_back(fmt::format("{}: {}", group.name, e.what()));
  }
}

std::string comparison(const json& row) {
  if (!row.contains("ratio")) return " |  | ";
  const json& other = row["comparator"];
  const std::string target =
      row.contains("target_ratio") ? fmt::format(" (target {:.1f})", row["target_ratio"].get<double>()) : "";
  return fmt::format("{:.1f} ({}) | {:.2f}{} | {:.2f}", other["rate"].get<double>(),
                     other["name"].get<std::string>(), row["ratio"].get<double>(), target,
                     row["best_ratio"].get<double>());
}

std::string head(const json& result) {
  return fmt::format(
      "{}, {}, commit {}, {}, medians of {} calls by {} time, load average {:.1f} to {:.1f}\n\n    {}\n\n"
      "| op | shape | rate | spread | beside | ratio | ratio of the best |\n|---|---|---|---|---|---|---|\n",
      result["device"].get<std::string>(), result["backend"].get<std::string>(),
      result["commit"].get<std::string>(), result["compiler"].get<std::string>(), result["rounds"].get<int>(),
      result["clock"].get<std::string>(), result["load_average_before"].get<double>(),
      result["load_average_after"].get<double>(), result["command"].get<std::string>());
}

std::string line(const json& row) {
  return fmt::format("| {}: {} | {} | {:.1f} {} | {:.0f} % | {} |\n", row["group"].get<std::string>(),
                     row["name"].get<std::string>(), row["shape"].get<std::string>(),
                     row["rate"].get<double>(), row["unit"].get<std::string>(),
                     100 * row["spread"].get<double>(), comparison(row));
}

// What failed; what the comparators were, or why they are missing; a GPU's clocks.
std::string foot(const json& result) {
  std::string text;
  if (result.contains("failed"))
    for (const json& reason : result["failed"])
      text += fmt::format("\nFAILED {}\n", reason.get<std::string>());
  if (result.contains("openblas") && result["openblas"].contains("kernel"))
    text += fmt::format("\nOpenBLAS kernel: {}.\n", result["openblas"]["kernel"].get<std::string>());
  for (const char* library : {"openblas", "onednn"})
    if (result.contains(library) && result[library].contains("missing"))
      text += fmt::format("\nNot compared: {}.\n", result[library]["missing"].get<std::string>());
  for (const char* when : {"gpu_before", "gpu_after"})
    if (result.contains(when)) text += fmt::format("\n{}: {}\n", when, result[when].dump());
  return text;
}

}  // namespace

json run(const Options& options) {
  check_filter(options.filter);
  Context context(options);
  json result{{"command", options.command},
              {"commit", H3S_COMMIT},
              {"device", context.on_gpu() ? backend::describe(options.device) : processor()},
              {"backend", context.backend().name()},
              {"compiler", H3S_COMPILER},
              {"rounds", options.rounds},
              {"clock", clock_name(context.clock())},
              {"failed", json::array()},
              {"load_average_before", load_average()}};
  if (context.on_gpu())
    result["gpu_before"] = gpu_state(options.device.cuda);
  else
    result.update({{"threads", context.num_threads()},
                   {"openblas", openblas::describe()},
                   {"onednn", onednn::describe()}});
  for (const Group& group : context.on_gpu() ? kGpuGroups : kCpuGroups)
    if (options.filter.empty() || options.filter == group.name) run_group(group, context, result["failed"]);
  if (context.on_gpu()) result["gpu_after"] = gpu_state(options.device.cuda);
  result["load_average_after"] = load_average();
  result["rows"] = context.rows();
  return result;
}

std::string table(const json& result) {
  std::string text = head(result);
  for (const json& row : result["rows"]) text += line(row);
  return text + foot(result);
}

}  // namespace h3s::bench
