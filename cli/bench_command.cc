// h3stream bench: speed of the CPU ops beside OpenBLAS, oneDNN and memcpy.
#include <fmt/format.h>

#include <fstream>
#include <memory>

#include "base/error.h"
#include "bench/bench.h"
#include "commands.h"

namespace h3s::cli {
namespace {

struct BenchOptions {
  bench::Options bench;
  std::string json_path;
  std::string show_path;
};

std::string repeat_command(const bench::Options& o) {
  std::string text = "h3stream bench";
  if (!o.filter.empty()) text += " --filter " + o.filter;
  if (o.num_threads != 0) text += fmt::format(" --threads {}", o.num_threads);
  return text + fmt::format(" --m {} --rounds {}", fmt::join(o.m, " "), o.rounds);
}

void write_json(const std::string& path, const nlohmann::json& result) {
  std::ofstream file(path);
  file << result.dump(1) << '\n';
  if (!file.flush()) fail(Status::kIo, "{}: could not be written", path);
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(Status::kIo, "{}: could not be opened", path);
  return nlohmann::json::parse(file);
}

int run_bench(BenchOptions& options) {
  if (!options.show_path.empty()) {
    fmt::print("{}", bench::table(read_json(options.show_path)));
    return 0;
  }
  options.bench.command = repeat_command(options.bench);
  const nlohmann::json result = bench::run(options.bench);
  if (!options.json_path.empty()) write_json(options.json_path, result);
  fmt::print("{}", bench::table(result));
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("bench", "Time the CPU ops beside OpenBLAS, oneDNN and memcpy");
  auto options = std::make_shared<BenchOptions>();
  command->add_option("--filter", options->bench.filter, "linear, int8, attention or rows (default: all)");
  command->add_option("--threads", options->bench.num_threads, "Threads (default: all the machine has)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--m", options->bench.m, "Rows of the linear layers")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--rounds", options->bench.rounds, "Timed calls of each op; medians are shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--json", options->json_path, "Write the result to this file");
  command->add_option("--show", options->show_path,
                      "Print the table of a stored result instead of measuring");
  command->callback([&run, options] { run = [options] { return run_bench(*options); }; });
}

}  // namespace h3s::cli
