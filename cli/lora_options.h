// --lora and --lora-mode, wherever a checkpoint is run or planned.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace h3s::cli {

struct LoraOptions {
  std::vector<std::string> files;  // FILE or FILE:STRENGTH
  std::string mode = "runtime";

  std::vector<checkpoint::LoraRequest> requests() const;
  // The checkpoint with them. Throws as Checkpoint::with_loras().
  checkpoint::Checkpoint adapted(const checkpoint::Checkpoint& checkpoint) const;
  // The same, having said on stderr, a line a file, what became of each; without any, the
  // checkpoint as it is.
  checkpoint::Checkpoint apply(const checkpoint::Checkpoint& checkpoint) const;
};

// Adds them to `command`; `options` must live as long as it.
void add_lora_options(CLI::App& command, LoraOptions& options);

// [{"path", "strength", "applied", "total", "skipped": [{"key", "reason"}, ...]}, ...]
nlohmann::json lora_json(const checkpoint::LoraSet& loras);

// What they come to, for settings and JSON: [{"file": FINGERPRINT, "strength": 1}, ...].
std::string lora_settings(const checkpoint::LoraSet& loras);

}  // namespace h3s::cli
