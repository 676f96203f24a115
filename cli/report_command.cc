// h3stream report: what a ledger says, and two of them side by side.
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "commands.h"
#include "ledger/page.h"
#include "ledger/summary.h"
#include "log.h"
#include "values.h"

namespace h3s::cli {
namespace {

using ledger::Json;
using ledger::Ledger;
using ledger::Summary;

struct Options {
  std::vector<std::string> directories;
  bool as_json = false, page = false;
};

struct Entry {
  std::string directory;
  Ledger ledger;
  Summary summary;
};

// A number of the report: how to get it, and how it is written.
struct Line {
  std::string name, key;
  std::function<std::optional<double>(const Entry&)> value;
  std::function<std::string(double)> text;
};

std::string seconds_text(double seconds) {
  return seconds < 0.1 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}
std::string share_text(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}
std::string bytes_text(double bytes) {
  return format_bytes(static_cast<std::int64_t>(bytes));
}

std::optional<double> positive(double value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}
std::optional<double> number(std::optional<std::int64_t> bytes) {
  return bytes ? std::optional(static_cast<double>(*bytes)) : std::nullopt;
}

std::vector<Line> time_lines() {
  std::vector<Line> lines{
      {"s/step, mean", "step_seconds", [](const Entry& r) { return positive(r.summary.step_seconds); },
       seconds_text},
      {"s/block, median", "block_seconds", [](const Entry& r) { return positive(r.summary.block_seconds); },
       seconds_text},
      {"slowest block", "slowest_block_seconds",
       [](const Entry& r) { return r.summary.slowest ? positive(r.summary.slowest->seconds) : std::nullopt; },
       seconds_text}};
  for (std::size_t phase = 0; phase < exec::kPhaseNames.size(); ++phase)
    lines.push_back({fmt::format("  {}", exec::kPhaseNames[phase]),
                     fmt::format("{}_share", exec::kPhaseNames[phase]),
                     [phase](const Entry& r) -> std::optional<double> {
                       double all = 0;
                       for (const double seconds : r.summary.phase_seconds) all += seconds;
                       return all > 0 ? std::optional(r.summary.phase_seconds[phase] / all) : std::nullopt;
                     },
                     share_text});
  return lines;
}

std::vector<Line> memory_lines() {
  std::vector<Line> lines;
  for (int i = 0; i < mem::kNumSpaces; ++i) {
    const std::string space = mem::space_name(static_cast<mem::Space>(i));
    const auto idx = static_cast<std::size_t>(i);
    lines.push_back({space + " planned", space + "_planned_bytes",
                     [idx](const Entry& r) { return number(r.ledger.header.planned_bytes[idx]); },
                     bytes_text});
    lines.push_back({space + " peak", space + "_peak_bytes",
                     [idx](const Entry& r) { return number(r.summary.peak_bytes[idx]); }, bytes_text});
  }
  const auto add = [&](const char* name, const char* key, auto value) {
    lines.push_back({name, key, [value](const Entry& r) { return number(value(r)); }, bytes_text});
  };
  add("device budget", "device_budget_bytes",
      [](const Entry& r) { return r.ledger.header.device_budget_bytes; });
  add("RAM budget", "ram_budget_bytes", [](const Entry& r) { return r.ledger.header.ram_budget_bytes; });
  add("device in use, by the driver", "device_used_bytes",
      [](const Entry& r) { return r.summary.device_used_bytes; });
  add("RSS anonymous, most", "rss_anon_bytes",
      [](const Entry& r) { return std::optional(r.summary.rss_anon_bytes); });
  add("RSS file, most", "rss_file_bytes",
      [](const Entry& r) { return std::optional(r.summary.rss_file_bytes); });
  add("swapped out, most", "swap_bytes", [](const Entry& r) { return std::optional(r.summary.swap_bytes); });
  return lines;
}

void print_head(const Entry& run) {
  const ledger::Header& h = run.ledger.header;
  fmt::print("{}\n  {}: {} blocks, {} tokens, {} of {} steps\n  {}\n  on {}, h3stream {}, started {}\n  {}\n",
             one_line(run.directory), one_line(h.model), h.blocks, h.tokens, run.summary.steps, h.steps,
             one_line(h.plan), one_line(h.backend), one_line(h.version), one_line(h.started),
             one_line(run.summary.outcome));
  if (run.ledger.truncated) fmt::print("  the last line was cut off, and is left out\n");
  fmt::print("  measured <= planned <= budget: {}\n",
             ledger::within_plan(run.ledger, run.summary) ? "held" : "BROKEN");
  for (const ledger::Remark& remark : run.ledger.remarks)
    fmt::print("  watchdog, step {} block {}: {}\n", remark.step, remark.block, one_line(remark.text));
  if (run.ledger.remarks.empty()) fmt::print("  watchdog: nothing to say\n");
  fmt::print("\n");
}

void print_line(const Line& line, const std::vector<Entry>& runs) {
  std::string text = fmt::format("{:<30}", line.name);
  for (const Entry& run : runs) {
    const std::optional<double> value = line.value(run);
    text += fmt::format("{:>14}", value ? line.text(*value) : "-");
  }
  if (runs.size() == 2) {
    const std::optional<double> first = line.value(runs[0]), second = line.value(runs[1]);
    text += first && second && *first > 0 ? fmt::format("{:>9.3f}x", *second / *first) : "";
  }
  fmt::print("{}\n", text);
}

void print(const std::vector<Entry>& runs) {
  for (const Entry& run : runs) print_head(run);
  if (runs.size() == 2) fmt::print("{:<30}{:>14}{:>14}{:>10}\n", "", "first", "second", "ratio");
  for (const Line& line : time_lines()) print_line(line, runs);
  for (const Line& line : memory_lines()) print_line(line, runs);
}

Json to_json(const Entry& run) {
  Json out{{"directory", run.directory},        {"outcome", run.summary.outcome},
           {"truncated", run.ledger.truncated}, {"within_plan", ledger::within_plan(run.ledger, run.summary)},
           {"steps", run.summary.steps},        {"header", ledger::to_json(run.ledger.header)},
           {"remarks", Json::array()}};
  for (const ledger::Remark& remark : run.ledger.remarks) out["remarks"].push_back(ledger::to_json(remark));
  for (const auto& lines : {time_lines(), memory_lines()})
    for (const Line& line : lines) {
      const std::optional<double> value = line.value(run);
      out[line.key] = value ? Json(*value) : Json();
    }
  return out;
}

int report(const Options& options) {
  std::vector<Entry> runs;
  for (const std::string& directory : options.directories) {
    Ledger ledger = ledger::read_ledger(ledger::ledger_path(directory));
    Summary summary = ledger::summarise(ledger);
    runs.push_back({directory, std::move(ledger), std::move(summary)});
    if (options.page) ledger::write_page(directory);
  }
  if (!options.as_json) {
    print(runs);
    return 0;
  }
  Json out{{"runs", Json::array()}};
  for (const Entry& run : runs) out["runs"].push_back(to_json(run));
  fmt::print("{}", json_text(out));
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("report", "Print what a ledger of `run --ledger DIR` says, or compare two");
  const auto options = std::make_shared<Options>();
  command->add_option("DIR", options->directories, "One or two folders of `run --ledger`")
      ->required()
      ->expected(1, 2)
      ->check(not_empty());
  command->add_flag("--page", options->page,
                    "Make DIR/index.html anew, for instance of a run that was killed");
  command->add_flag("--json", options->as_json, "Print one JSON object, bytes and seconds");
  command->callback([options, &run] { run = [options] { return report(*options); }; });
}

}  // namespace h3s::cli
