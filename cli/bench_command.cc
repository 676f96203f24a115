// h3stream bench: speed of the ops, on the CPU beside OpenBLAS, oneDNN and memcpy, on a GPU beside its copy
// rate.
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

constexpr int kCheckFailed = 1;
constexpr std::int64_t kMaxTokens = 1 << 20;

struct BenchOptions {
  bench::Options bench;
  std::string device = "auto";
  int threads = 0;
  std::string json_path;
  std::string show_path;
};

// Fills in what depends on the device.
void resolve(BenchOptions& options) {
  bench::Options& o = options.bench;
  o.device = backend::parse_device(options.device, options.threads);
  const bool cpu = o.device.on_cpu();
  if (o.lora_rank % 16 != 0)
    fail(Status::kInvalidArgument, "[bench] lora-rank must be a multiple of 16, got {}", o.lora_rank);
  if (o.m.empty()) o.m = cpu ? std::vector<std::int64_t>{1024, 16, 1} : std::vector<std::int64_t>{16384};
  if (o.tokens == 0) o.tokens = cpu ? 512 : 28931;
}

std::string repeat_command(const bench::Options& o) {
  std::string text = "h3stream bench --device ";
  text += o.device.on_cpu() ? "cpu" : fmt::format("cuda:{}", o.device.cuda);
  if (!o.filter.empty()) text += " --filter " + o.filter;
  if (o.block_format != bench::kDefaultBlockFormat) text += " --format " + o.block_format;
  if (o.lora_rank != 0) text += fmt::format(" --lora-rank {}", o.lora_rank);
  if (o.device.threads != 0) text += fmt::format(" --threads {}", o.device.threads);
  return text + fmt::format(" --m {} --tokens {} --rounds {}", fmt::join(o.m, " "), o.tokens, o.rounds);
}

// Throws nlohmann's out_of_range or type_error where a field is missing that the table reads: reading one
// that is not there is undefined.
void require_fields(const nlohmann::json& object, std::initializer_list<const char*> fields) {
  for (const char* field : fields) static_cast<void>(object.at(field));
}

void check_result(const nlohmann::json& result) {
  require_fields(result, {"device", "backend", "commit", "compiler", "rounds", "clock", "load_average_before",
                          "load_average_after", "command", "rows"});
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
  resolve(options);
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
  for (const nlohmann::json& reason : result["failed"]) log("h3stream: {}", reason.get<std::string>());
  return result["failed"].empty() ? 0 : kCheckFailed;
}

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      "bench", "Check and time the ops: beside OpenBLAS, oneDNN and memcpy, or beside a GPU's copy rate");
  auto options = std::make_shared<BenchOptions>();
  command
      ->add_option("--filter", options->bench.filter, "linear, int8, attention, rows or block (default: all)")
      ->check(not_empty());
  command->add_option("--device", options->device, "auto (a GPU when there is one), cpu or cuda:N")
      ->check(not_empty())
      ->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads (default: all the machine has)")
      ->check(whole(1, 1024));
  command
      ->add_option("--m", options->bench.m,
                   "Rows of the linear layers (default: 1024 16 1 on the CPU, 16384 on a GPU)")
      ->check(whole(1, 1 << 20));
  command
      ->add_option("--tokens", options->bench.tokens,
                   "Tokens of a GPU's attention and of the block (default: 512 on the CPU, 28931 on a GPU)")
      ->check(whole(8, kMaxTokens));
  command->add_option("--format", options->bench.block_format, "Weight format of the block's linears")
      ->check(CLI::IsMember(
          {"bf16", "int8_tensorwise", "asym_w4a8_int8", "convrot_w4a4", "float8_e4m3fn", "mxfp8", "nvfp4"}))
      ->capture_default_str();
  command
      ->add_option("--lora-rank", options->bench.lora_rank,
                   "Rank of a LoRA of each of the block's linears, a multiple of 16; 0 none")
      ->check(whole(0, 4096))
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
