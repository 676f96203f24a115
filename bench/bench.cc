#include "bench.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "comparators.h"
#include "context.h"

namespace h3s::bench {
namespace {

using nlohmann::json;

struct Group {
  const char* name;
  void (*run)(Context&);
};

constexpr std::array<Group, 4> kGroups{
    {{"linear", bench_linear}, {"int8", bench_int8}, {"attention", bench_attention}, {"rows", bench_rows}}};

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
  for (const Group& group : kGroups) {
    if (filter.empty() || filter == group.name) return;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", group.name);
  }
  fail(Status::kInvalidArgument, "[bench] filter must be one of {}, got {}", names, filter);
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

// What the comparators were, or why they are missing.
std::string foot(const json& result) {
  const json& blas = result["openblas"];
  std::string text = blas.contains("kernel")
                         ? fmt::format("\nOpenBLAS kernel: {}.\n", blas["kernel"].get<std::string>())
                         : "";
  for (const char* library : {"openblas", "onednn"})
    if (result[library].contains("missing"))
      text += fmt::format("\nNot compared: {}.\n", result[library]["missing"].get<std::string>());
  return text;
}

}  // namespace

json run(const Options& options) {
  check_filter(options.filter);
  Context context(options);
  json result{{"command", options.command},
              {"commit", H3S_COMMIT},
              {"device", processor()},
              {"backend", context.backend().name()},
              {"threads", context.num_threads()},
              {"compiler", H3S_COMPILER},
              {"rounds", options.rounds},
              {"clock", context.clock() == Clock::kThread ? "thread" : "wall"},
              {"openblas", openblas::describe()},
              {"onednn", onednn::describe()},
              {"load_average_before", load_average()}};
  for (const Group& group : kGroups)
    if (options.filter.empty() || options.filter == group.name) group.run(context);
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
