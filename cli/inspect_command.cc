// `h3stream inspect`: what a checkpoint holds, and everything suspicious about it.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "checkpoint/formats.h"
#include "checkpoint/report.h"
#include "commands.h"
#include "exec/weight_loader.h"
#include "io/json.h"
#include "log.h"
#include "lora_options.h"
#include "values.h"

namespace h3s::cli {
namespace {

using checkpoint::Finding;
using checkpoint::FormatCount;
using checkpoint::Report;
using checkpoint::Severity;
using nlohmann::ordered_json;

constexpr int kRefused = 2;  // exit code of bad input

struct Arguments {
  std::string file;
  bool json = false, formats = false;
  LoraOptions lora;
  io::ReadOptions options;
};

const char* severity_name(Severity severity) {
  return severity == Severity::kWarning ? "warning" : "note";
}

struct SpecField {
  const char* name;
  const char* text;
  std::int64_t spec::ModelSpec::*member;
};
constexpr SpecField kSpecFields[] = {
    {"hidden_size", "hidden size", &spec::ModelSpec::hidden},
    {"num_layers", "blocks", &spec::ModelSpec::layers},
    {"token_refiner_num_layers", "refiner blocks", &spec::ModelSpec::refiner_layers},
    {"num_attention_heads", "heads", &spec::ModelSpec::heads},
    {"attention_head_dim", "head width", &spec::ModelSpec::head_dim},
    {"ffn_hidden_size", "MLP width", &spec::ModelSpec::ffn},
    {"video_channels", "video channels", &spec::ModelSpec::video_channels},
    {"audio_channels", "audio channels", &spec::ModelSpec::audio_channels},
    {"text_dim", "text width", &spec::ModelSpec::text_dim},
    {"timestep_input_dim", "timestep width", &spec::ModelSpec::timestep_dim},
    {"time_embed_hidden_size", "time hidden width", &spec::ModelSpec::time_hidden},
    {"time_embed_dim", "time width", &spec::ModelSpec::time_dim},
    {"adaln_curve_grid", "curve points", &spec::ModelSpec::curve_grid},
};

bool applies(const SpecField& field, const spec::ModelSpec& spec) {
  const bool full_only =
      field.member == &spec::ModelSpec::timestep_dim || field.member == &spec::ModelSpec::time_hidden;
  return field.member == &spec::ModelSpec::curve_grid ? spec.curve() : !(full_only && spec.curve());
}

const char* form_name(const spec::ModelSpec& spec) {
  return spec.curve() ? "curve" : "full";
}

std::string bytes_text(std::uint64_t bytes) {
  return format_bytes(static_cast<std::int64_t>(bytes));
}

void print_spec(const Report& report) {
  if (report.prefix) fmt::print("prefix        \"{}\"\n", *report.prefix);
  if (!report.spec) return;
  fmt::print("form          {}\n", form_name(*report.spec));
  fmt::print("quantised     {}\n", report.quantised ? "yes: stock holds the fp32 islands in bf16" : "no");
  for (const SpecField& field : kSpecFields)
    if (applies(field, *report.spec)) fmt::print("{:<18}{}\n", field.text, *report.spec.*field.member);
}

void print_formats(const Report& report) {
  if (report.formats.empty()) return;
  fmt::print("\n{:<11}{:<18}{:>7}  {:>12}\n", "layers", "format", "count", "bytes");
  std::uint64_t total = 0;
  for (const FormatCount& entry : report.formats) {
    fmt::print("{:<11}{:<18}{:>7}  {:>12}\n", entry.kind, entry.format, entry.count, bytes_text(entry.bytes));
    total += entry.bytes;
  }
  fmt::print("{:<11}{:<18}{:>7}  {:>12}\n", "all", "", "", bytes_text(total));
}

// Bytes of the weights as ops hold them, computing in bf16 on a device of its own.
struct WeightBytes {
  std::int64_t resident = 0;       // as long as the session
  std::int64_t text = 0;           // once a run: text projection, the largest refiner block
  std::int64_t blocks = 0;         // of the network: streamed in every step, or resident
  std::int64_t largest_block = 0;  // what a slot for streaming takes
};

// Empty for a file that does not load.
std::optional<WeightBytes> weight_bytes(const Report& report, const io::ReadOptions& options) {
  if (report.refusal) return std::nullopt;
  const auto checkpoint = checkpoint::Checkpoint::open(report.path, options);
  const exec::WeightSizes sizes = exec::WeightLoader(checkpoint, DType::kBF16, false).sizes();
  WeightBytes bytes{.resident = sizes.globals,
                    .text = sizes.conditioning + sizes.largest_refiner_block,
                    .largest_block = sizes.largest_block};
  for (const std::int64_t block : sizes.blocks) bytes.blocks += block;
  return bytes;
}

void print_weight_bytes(const WeightBytes& bytes) {
  fmt::print("\n{:<36}{:>14}\n", "weights in memory, bf16 compute", "bytes");
  fmt::print("{:<36}{:>14}\n", "resident", format_bytes(bytes.resident));
  fmt::print("{:<36}{:>14}\n", "text and refiner, once a run", format_bytes(bytes.text));
  fmt::print("{:<36}{:>14}\n", "blocks, streamed a step or resident", format_bytes(bytes.blocks));
  fmt::print("{:<36}{:>14}\n", "largest block, a slot to stream by", format_bytes(bytes.largest_block));
}

// What the LoRAs would change; nothing when the checkpoint does not load. Throws when nothing of one applies.
std::vector<checkpoint::LoraReport> lora_reports(const Report& report, const Arguments& arguments) {
  if (report.refusal || arguments.lora.files.empty()) return {};
  const auto base = checkpoint::Checkpoint::open(arguments.file, arguments.options);
  return arguments.lora.adapted(base).loras()->reports();
}

void print_loras(const std::vector<checkpoint::LoraReport>& loras) {
  if (!loras.empty()) fmt::print("\n");
  for (const checkpoint::LoraReport& lora : loras) fmt::print("LoRA     {}\n", one_line(lora.text()));
}

ordered_json lora_json(const checkpoint::LoraReport& lora) {
  ordered_json out{{"file", lora.path},
                   {"strength", lora.strength},
                   {"applied", lora.applied},
                   {"total", lora.total},
                   {"skipped", ordered_json::array()}};
  for (const auto& skipped : lora.skipped)
    out["skipped"].push_back({{"key", skipped.key}, {"reason", skipped.reason}});
  return out;
}

// Found out beside the report.
struct Extras {
  std::optional<WeightBytes> bytes;
  std::vector<checkpoint::LoraReport> loras;
};

void print_text(const Report& report, const Extras& extras) {
  fmt::print("file          {}\n", one_line(report.path));
  if (report.file_bytes > 0)
    fmt::print("size          {} bytes ({})\n", report.file_bytes, bytes_text(report.file_bytes));
  if (report.num_tensors > 0) fmt::print("tensors       {}\n", report.num_tensors);
  for (const auto& [key, value] : report.metadata)
    fmt::print("metadata      {} = {}\n", io::printable(key), io::printable(value));
  print_spec(report);
  print_formats(report);
  if (extras.bytes) print_weight_bytes(*extras.bytes);
  if (!report.findings.empty()) fmt::print("\n");
  for (const Finding& finding : report.findings)
    fmt::print("{:<8} {}\n", severity_name(finding.severity), one_line(finding.text));
  print_loras(extras.loras);
  fmt::print("\n{}\n", report.refusal ? "refused: " + one_line(*report.refusal) : "loads");
}

ordered_json spec_json(const spec::ModelSpec& spec) {
  ordered_json out;
  for (const SpecField& field : kSpecFields)
    if (applies(field, spec)) out[field.name] = spec.*field.member;
  return out;
}

void print_json(const Report& report, const Extras& extras) {
  ordered_json out{{"file", report.path},
                   {"bytes", report.file_bytes},
                   {"trailing_bytes", report.trailing_bytes},
                   {"tensors", report.num_tensors},
                   {"metadata", report.metadata},
                   {"prefix", nullptr},
                   {"form", nullptr},
                   {"config", nullptr},
                   {"quantised", report.quantised},
                   {"layers", ordered_json::array()},
                   {"weights", nullptr},
                   {"findings", ordered_json::array()},
                   {"loras", ordered_json::array()},
                   {"loads", !report.refusal},
                   {"refusal", nullptr}};
  if (report.prefix) out["prefix"] = *report.prefix;
  if (report.spec) {
    out["form"] = form_name(*report.spec);
    out["config"] = spec_json(*report.spec);
  }
  for (const FormatCount& entry : report.formats)
    out["layers"].push_back(
        {{"kind", entry.kind}, {"format", entry.format}, {"count", entry.count}, {"bytes", entry.bytes}});
  if (extras.bytes)
    out["weights"] = {{"compute", "bf16"},
                      {"resident_bytes", extras.bytes->resident},
                      {"text_bytes", extras.bytes->text},
                      {"block_bytes", extras.bytes->blocks},
                      {"largest_block_bytes", extras.bytes->largest_block}};
  for (const checkpoint::LoraReport& lora : extras.loras) out["loras"].push_back(lora_json(lora));
  for (const Finding& finding : report.findings)
    out["findings"].push_back({{"severity", severity_name(finding.severity)}, {"text", finding.text}});
  if (report.refusal) out["refusal"] = *report.refusal;
  fmt::print("{}", json_text(out));
}

int inspect(const Arguments& arguments) {
  const Report report = checkpoint::describe(arguments.file, arguments.options);
  const Extras extras{weight_bytes(report, arguments.options), lora_reports(report, arguments)};
  if (arguments.json)
    print_json(report, extras);
  else
    print_text(report, extras);
  return report.refusal ? kRefused : 0;
}

int list_formats_json() {
  ordered_json out = ordered_json::array();
  for (const checkpoint::FormatRow& row : checkpoint::formats())
    out.push_back({{"format", row.name},
                   {"weight", row.weight},
                   {"runs", row.bind != nullptr},
                   {"companions", row.companions},
                   {"note", row.note}});
  fmt::print("{}", json_text(out));
  return 0;
}

int list_formats() {
  fmt::print("{:<18}{:<16}{:<7}{:<58}{}\n", "format", "weight", "runs", "companions", "note");
  for (const checkpoint::FormatRow& row : checkpoint::formats())
    fmt::print("{:<18}{:<16}{:<7}{:<58}{}\n", row.name, row.weight, row.bind != nullptr ? "yes" : "no",
               row.companions, row.note);
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Describe a checkpoint and list everything suspicious; exit code 2 if it cannot load");
  const auto arguments = std::make_shared<Arguments>();
  CLI::Option* file =
      command
          ->add_option("FILE,-m,--model", arguments->file,
                       "Safetensors file, or the .index.json of several; with or without the option's name")
          ->check(not_empty());
  CLI::Option* formats = command->add_flag("--formats", arguments->formats,
                                           "List the weight formats and whether this build runs them");
  file->excludes(formats);
  add_lora_options(*command, arguments->lora);
  command->add_flag("--json", arguments->json, "Print JSON instead of text");
  command->add_flag("--allow-trailing-bytes", arguments->options.allow_trailing_bytes,
                    "Accept bytes after the last tensor");
  command->callback([arguments, &run] {
    if (arguments->file.empty() && !arguments->formats) throw CLI::RequiredError("FILE or --formats");
    run = [arguments] {
      if (!arguments->formats) return inspect(*arguments);
      return arguments->json ? list_formats_json() : list_formats();
    };
  });
}

}  // namespace h3s::cli
