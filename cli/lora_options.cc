#include "lora_options.h"

#include <charconv>
#include <cmath>

#include "log.h"
#include "sample/state.h"
#include "values.h"

namespace h3s::cli {
namespace {

// The last colon parts a file from its strength where a number follows it; a name may hold others.
checkpoint::LoraRequest parse(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return {text, 1.0f};
  const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
  if (begin != end && *begin == '+') ++begin;
  float strength = 0;
  const auto [stop, error] = std::from_chars(begin, end, strength);
  if (begin == end || stop != end || (error != std::errc() && error != std::errc::result_out_of_range))
    return {text, 1.0f};
  if (error != std::errc() || !std::isfinite(strength))
    fail(Status::kInvalidArgument, "[lora] strength must be a finite number, got {}", text.substr(colon + 1));
  return {text.substr(0, colon), strength};
}

}  // namespace

std::vector<checkpoint::LoraRequest> LoraOptions::requests() const {
  std::vector<checkpoint::LoraRequest> list;
  for (const std::string& text : files) list.push_back(parse(text));
  return list;
}

checkpoint::Checkpoint LoraOptions::adapted(const checkpoint::Checkpoint& checkpoint) const {
  return checkpoint.with_loras(
      requests(), mode == "merge" ? checkpoint::LoraMode::kMerge : checkpoint::LoraMode::kRuntime);
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
