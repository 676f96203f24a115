#include "lora_options.h"

#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "log.h"
#include "sample/state.h"
#include "values.h"

namespace h3s::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& text, Status status, std::string_view reason) {
  fail(status, "--lora {}: {}", one_line(text), reason);
}

float parse_strength(const std::string& text, const std::string& number) {
  const char *begin = number.data(), *end = number.data() + number.size();
  if (begin != end && *begin == '+') ++begin;
  float strength = NAN;
  const auto [stop, error] = std::from_chars(begin, end, strength);
  if (begin == end || stop != end || error != std::errc() || !std::isfinite(strength))
    refuse(text, Status::kInvalidArgument,
           fmt::format("the strength after the colon must be a finite number, got \"{}\"", number));
  return strength;
}

// The last colon parts a file from its strength, unless it belongs to the name of a file that is there while
// none has the name before it.
checkpoint::LoraRequest parse(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string file = text.substr(0, colon);
  std::error_code error;  // ignored: what cannot be looked at is not there
  if (colon != std::string::npos && colon > 0 && fs::exists(file, error))
    return {file, parse_strength(text, text.substr(colon + 1))};
  if (!fs::exists(text, error)) refuse(text, Status::kIo, "no such file");
  return {text, 1.0f};
}

}  // namespace

std::vector<checkpoint::LoraRequest> LoraOptions::requests() const {
  std::vector<checkpoint::LoraRequest> list;
  for (const std::string& text : files) list.push_back(parse(text));
  return list;
}

checkpoint::Checkpoint LoraOptions::adapted(const checkpoint::Checkpoint& checkpoint) const {
  const std::vector<checkpoint::LoraRequest> list = requests();
  try {
    return checkpoint.with_loras(
        list, mode == "merge" ? checkpoint::LoraMode::kMerge : checkpoint::LoraMode::kRuntime);
  } catch (const Error& e) {  // names the file, and what is wrong with it
    throw Error(e.status(), fmt::format("--lora {}", e.what()));
  }
}

checkpoint::Checkpoint LoraOptions::apply(const checkpoint::Checkpoint& checkpoint) const {
  if (files.empty()) return checkpoint;
  const checkpoint::Checkpoint with = adapted(checkpoint);
  for (const checkpoint::LoraReport& report : with.loras()->reports()) log("LoRA {}", report.text());
  return with;
}

void add_lora_options(CLI::App& command, LoraOptions& options) {
  command
      .add_option(
          "--lora", options.files,
          "LoRA, safetensors, with its strength after a colon; default 1. May be given more than once; "
          "they add up (docs/lora.md)")
      ->type_name("FILE[:STRENGTH]")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->check(not_empty());
  command
      .add_option(
          "--lora-mode", options.mode,
          "runtime: beside the weights, which stay as they are; merge: into each weight as it is loaded, "
          "quantised again")
      ->capture_default_str()
      ->check(CLI::IsMember({"runtime", "merge"}));
}

nlohmann::json lora_json(const checkpoint::LoraSet& loras) {
  nlohmann::json list = nlohmann::json::array();
  for (const checkpoint::LoraReport& report : loras.reports()) {
    nlohmann::json skipped = nlohmann::json::array();
    for (const auto& [key, reason] : report.skipped) skipped.push_back({{"key", key}, {"reason", reason}});
    list.push_back({{"path", report.path},
                    {"strength", report.strength},
                    {"applied", report.applied},
                    {"total", report.total},
                    {"skipped", skipped}});
  }
  return list;
}

std::string lora_settings(const checkpoint::LoraSet& loras) {
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < loras.files().size(); ++i)
    list.push_back(
        {{"file", sample::content_fingerprint(loras.files()[i])}, {"strength", loras.reports()[i].strength}});
  return list.dump();
}

}  // namespace h3s::cli
