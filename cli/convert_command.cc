// `h3stream convert`: a checkpoint in another weight format or row order.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/formats.h"
#include "checkpoint/row_order.h"
#include "commands.h"
#include "interrupt.h"
#include "io/safetensors_index.h"
#include "log.h"
#include "progress.h"
#include "values.h"

namespace h3s::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::ConvertOptions;
using checkpoint::ConvertSummary;
using checkpoint::WeightFormat;

constexpr int kOrderBlocks = 4;  // looked at before rows are believed to lie as they should

struct Arguments {
  std::string model, output, format, recipe, qkv = "contiguous", fc1 = "gate-first";
  std::vector<std::string> layers;
  int threads = 2;
  bool force = false, dry_run = false, json = false;
  io::ReadOptions options;
};

std::string recipe_help() {
  std::string help = "Mixture as published files use it:";
  for (const checkpoint::Recipe& recipe : checkpoint::recipes())
    help += fmt::format("{} {} ({})", &recipe == checkpoint::recipes().data() ? "" : ";", recipe.name,
                        recipe.summary);
  return help;
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const checkpoint::Recipe& recipe : checkpoint::recipes()) names.emplace_back(recipe.name);
  return names;
}

ConvertOptions make_options(const Arguments& arguments, const Checkpoint& input) {
  ConvertOptions options;
  if (!arguments.recipe.empty())
    options.rules = checkpoint::find_recipe(arguments.recipe)->rules(input.spec());
  if (!arguments.format.empty()) {
    const WeightFormat format = *checkpoint::writable_format(arguments.format);
    options.rules = checkpoint::block_rules(format);
    if (format <= WeightFormat::kF32) options.decode_others = format;
  }
  for (const std::string& rule : arguments.layers)
    options.rules.push_back(checkpoint::parse_layer_rule(rule));
  options.stored = {.interleaved_qkv = arguments.qkv == "interleaved",
                    .up_first_fc1 = arguments.fc1 == "up-first"};
  options.threads = arguments.threads;
  return options;
}

void check_output(const Arguments& arguments) {
  if (io::is_safetensors_index(arguments.output))
    fail(Status::kInvalidArgument, "{}: expected a name for one file, got that of an index",
         arguments.output);
  std::error_code ignored;  // what is not there does not exist
  if (!arguments.force && fs::exists(fs::symlink_status(arguments.output, ignored)))
    fail(Status::kInvalidArgument, "{}: exists; --force replaces it", arguments.output);
}

// An index beside `file` of which it is a shard; empty: none. Indexes that cannot be read are no one's.
std::string index_of(const fs::path& file) {
  const fs::path folder = file.parent_path().empty() ? "." : file.parent_path();
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (!io::is_safetensors_index(entry.path().native())) continue;
    try {
      for (const auto& [key, name] : io::read_safetensors_index(entry.path()))
        if (name == file.filename()) return entry.path();
    } catch (const Error&) {
    }
  }
  return "";
}

// Not even with --force: what is read, and files that others count on.
void check_replaced(const Arguments& arguments, const Checkpoint& input) {
  std::error_code ignored;
  for (const std::string& file : input.file().files())
    if (fs::equivalent(file, arguments.output, ignored))
      fail(Status::kInvalidArgument, "{}: cannot be the output of a conversion that reads it",
           arguments.output);
  if (const std::string index = index_of(arguments.output);
      !index.empty() && fs::exists(arguments.output, ignored))
    fail(Status::kInvalidArgument, "{}: cannot be replaced: it is a part of {}", arguments.output, index);
}

// What the weights themselves say about their order, where that is not what the options say.
void warn_about_order(const Checkpoint& input, const checkpoint::StoredRows& stored) {
  using checkpoint::RowOrder;
  const auto warn = [](const checkpoint::OrderVerdict& verdict, bool changed, const char* message) {
    if (verdict.order == (changed ? RowOrder::kExpected : RowOrder::kOther))
      log("warning: {} (confidence {:.4f} by a statistic that was tried on made-up weights only)", message,
          verdict.confidence);
  };
  warn(checkpoint::qkv_order(input, kOrderBlocks), stored.interleaved_qkv,
       stored.interleaved_qkv ? "rows of qkv_proj seem to be all q, all k, all v already: --qkv interleaved "
                                "would spoil them"
                              : "rows of qkv_proj seem to be interleaved per head: --qkv interleaved repacks "
                                "them");
  warn(checkpoint::fc1_order(input, kOrderBlocks), stored.up_first_fc1,
       stored.up_first_fc1 ? "rows of fc1 seem to be gate first already: --fc1 up-first would spoil them"
                           : "rows of fc1 seem to be up first: --fc1 up-first swaps the halves");
}

void print(const Arguments& arguments, const ConvertSummary& summary) {
  if (arguments.json) {
    const nlohmann::ordered_json out{
        {"output", arguments.output},        {"bytes", summary.bytes},
        {"written", !arguments.dry_run},     {"linears", summary.layers},
        {"kept_as_stored", summary.kept},    {"requantised", summary.requantised},
        {"fitted_codebooks", summary.fitted}};
    fmt::print("{}", json_text(out));
    return;
  }
  fmt::print("{}: {} of tensors{}\n", one_line(arguments.output),
             format_bytes(static_cast<std::int64_t>(summary.bytes)),
             arguments.dry_run ? ", not written" : "");
  for (const auto& [format, count] : summary.layers) fmt::print("{:<18}{:>5} linears\n", format, count);
  fmt::print("{:<18}{:>5} of them\n", "kept as stored", summary.kept);
  if (summary.fitted > 0) fmt::print("{:<18}{:>5} of them\n", "levels fitted", summary.fitted);
}

void check_purpose(const Arguments& arguments) {
  if (arguments.format.empty() && arguments.recipe.empty() && arguments.layers.empty() &&
      arguments.qkv == "contiguous" && arguments.fc1 == "gate-first")
    fail(Status::kInvalidArgument,
         "[convert] nothing to do: expected --format, --recipe, --layers, --qkv interleaved or --fc1 "
         "up-first");
}

int convert(const Arguments& arguments) {
  check_purpose(arguments);
  if (!arguments.dry_run) check_output(arguments);
  const Checkpoint input = Checkpoint::open(arguments.model, arguments.options);
  if (!arguments.dry_run) check_replaced(arguments, input);
  const ConvertOptions options = make_options(arguments, input);
  ConvertSummary summary = plan_conversion(input, options);
  warn_about_order(input, options.stored);
  if (summary.requantised > 0)
    log("warning: {} linears are quantised already; quantising them again adds to their error",
        summary.requantised);
  if (!arguments.dry_run) {
    const InterruptGuard guard;
    try {
      summary =
          convert_checkpoint(input, arguments.output, options,
                             [progress = ByteProgress()](std::uint64_t done, std::uint64_t total) mutable {
                               InterruptGuard::check();
                               progress(done, total);
                             });
    } catch (const Interrupted& interrupted) {
      log("h3stream: interrupted; nothing was written");
      return interrupted.exit_code();
    }
  }
  print(arguments, summary);
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      "convert",
      "Write a checkpoint in another weight format. Streams: 5 MiB of memory a thread and 24 MiB beside, "
      "whatever the size");
  const auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("-m,--model", arguments->model,
                   "Checkpoint to read: a .safetensors file, or the .index.json of several")
      ->required()
      ->check(not_empty());
  command->add_option("-o,--output", arguments->output, "File to write, whole or not at all")
      ->required()
      ->check(not_empty());
  CLI::Option* format =
      command
          ->add_option("--format", arguments->format,
                       "Format of the four linears of every block; a plain one also decodes every other "
                       "quantised layer; int8 is int8_tensorwise with ConvRot; asym_w4a8_int8 has the "
                       "format's fixed levels, or in a layer with heavy tails levels fitted to it")
          ->check(CLI::IsMember(checkpoint::writable_format_names()));
  command->add_option("--recipe", arguments->recipe, recipe_help())
      ->check(CLI::IsMember(recipe_names()))
      ->excludes(format);
  command
      ->add_option("--layers", arguments->layers,
                   "PATTERN=FORMAT, may be repeated: linears whose name matches, for instance "
                   "\"blocks.0.*=bf16\" or \"token_refiner.*=int8\"; the last that matches decides; default: "
                   "--format or --recipe, others stay as stored")
      ->allow_extra_args(false);
  command
      ->add_option("--qkv", arguments->qkv,
                   "Order of the rows of qkv_proj in the input: contiguous (all q, all k, all v) or "
                   "interleaved (per head, the original shards)")
      ->check(CLI::IsMember({"contiguous", "interleaved"}))
      ->capture_default_str();
  command->add_option("--fc1", arguments->fc1, "Order of the halves of fc1 in the input")
      ->check(CLI::IsMember({"gate-first", "up-first"}))
      ->capture_default_str();
  command->add_option("--threads", arguments->threads, "Threads; the bytes do not depend on it")
      ->check(whole(1, 256))
      ->capture_default_str();
  command->add_flag(
      "--force", arguments->force,
      "Replace the output when it exists, once the new one is whole; never a file that is read, nor a "
      "shard of an index");
  command->add_flag("--dry-run", arguments->dry_run, "Print what would be written, and write nothing");
  command->add_flag("--json", arguments->json, "Print JSON instead of text");
  command->add_flag("--allow-trailing-bytes", arguments->options.allow_trailing_bytes,
                    "Accept bytes after the last tensor");
  command->callback([arguments, &run] { run = [arguments] { return convert(*arguments); }; });
}

}  // namespace h3s::cli
