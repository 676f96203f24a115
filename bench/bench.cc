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
  if (!row.contains("ratio")) return " | ";
  const json& other = row["comparator"];
  return fmt::format(
      "{:.1f} ({}) | {:.2f}{}", other["rate"].get<double>(), other["name"].get<std::string>(),
      row["ratio"].get<double>(),
      row.contains("target_ratio") ? fmt::format(" (target {:.1f})", row["target_ratio"].get<double>()) : "");
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
  std::string text = fmt::format(
      "{} · {} · commit {}\n`{}`\n\n| op | shape | rate | spread | beside | ratio "
      "|\n|---|---|---|---|---|---|\n",
      result["device"].get<std::string>(), result["backend"].get<std::string>(),
      result["commit"].get<std::string>(), result["command"].get<std::string>());
  for (const json& row : result["rows"])
    text += fmt::format("| {}: {} | {} | {:.1f} {} | {:.0f} % | {} |\n", row["group"].get<std::string>(),
                        row["name"].get<std::string>(), row["shape"].get<std::string>(),
                        row["rate"].get<double>(), row["unit"].get<std::string>(),
                        100 * row["spread"].get<double>(), comparison(row));
  for (const char* library : {"openblas", "onednn"})
    if (result[library].contains("missing"))
      text += fmt::format("\nNot compared: {}.\n", result[library]["missing"].get<std::string>());
  if (result["openblas"].contains("kernel"))
    text += fmt::format("\nOpenBLAS kernel: {}.\n", result["openblas"]["kernel"].get<std::string>());
  return text;
}

}  // namespace h3s::bench
