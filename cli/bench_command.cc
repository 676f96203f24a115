// h3stream bench: speed of the CPU ops beside OpenBLAS, oneDNN and memcpy.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <optional>

#include "base/error.h"
#include "bench/bench.h"
#include "commands.h"
#include "io/output_file.h"
#include "log.h"
#include "values.h"

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

// Throws nlohmann's out_of_range or type_error where a field is missing that the table reads: reading one
// that is not there is undefined.
void require_fields(const nlohmann::json& object, std::initializer_list<const char*> fields) {
  for (const char* field : fields) static_cast<void>(object.at(field));
}

void check_result(const nlohmann::json& result) {
  require_fields(result, {"device", "backend", "commit", "compiler", "rounds", "clock", "load_average_before",
                          "load_average_after", "command", "rows", "openblas", "onednn"});
  for (const nlohmann::json& row : result.at("rows")) {
    require_fields(row, {"group", "name", "shape", "rate", "unit", "spread"});
    if (!row.contains("ratio")) continue;
    require_fields(row, {"comparator", "best_ratio"});
    require_fields(row.at("comparator"), {"rate", "name"});
  }
}

// The table of a stored result.
std::string stored_table(const std::string& path) {
  if (!std::filesystem::exists(path)) fail(Status::kIo, "{}: no such file", path);
  if (!std::filesystem::is_regular_file(path)) fail(Status::kBadFile, "{}: not a regular file", path);
  std::ifstream file(path);
  if (!file) fail(Status::kIo, "{}: could not be opened", path);
  try {
    const nlohmann::json result = nlohmann::json::parse(file);
    check_result(result);
    return bench::table(result);
  } catch (const nlohmann::json::exception& e) {
    fail(Status::kBadFile, "{}: no result of h3stream bench: {}", path, e.what());
  }
}

int run_bench(BenchOptions& options) {
  if (!options.show_path.empty()) {
    fmt::print("{}", stored_table(options.show_path));
    return 0;
  }
  options.bench.command = repeat_command(options.bench);
  std::optional<io::OutputFile> file;  // before measuring: a path that cannot be written is refused now
  if (!options.json_path.empty()) file.emplace(options.json_path);
  const nlohmann::json result = bench::run(options.bench);
  if (file) {
    const std::string text = json_text(result, 1);
    file->write(text.data(), text.size());
    file->commit();
  }
  fmt::print("{}", bench::table(result));
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("bench", "Time the CPU ops beside OpenBLAS, oneDNN and memcpy");
  auto options = std::make_shared<BenchOptions>();
  command->add_option("--filter", options->bench.filter, "linear, int8, attention or rows (default: all)")
      ->check(not_empty());
  command->add_option("--threads", options->bench.num_threads, "Threads (default: all the machine has)")
      ->check(whole(1, 1024));
  command->add_option("--m", options->bench.m, "Rows of the linear layers")
      ->check(whole(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--rounds", options->bench.rounds, "Timed calls of each op; medians are shown")
      ->check(whole(1, 1000))
      ->capture_default_str();
  command->add_option("--json", options->json_path, "Write the result to this file")->check(not_empty());
  command->add_option("--show", options->show_path, "Print the table of a stored result instead of measuring")
      ->check(not_empty());
  command->callback([&run, options] { run = [options] { return run_bench(*options); }; });
}

}  // namespace h3s::cli
