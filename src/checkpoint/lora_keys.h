// Names of tensors in LoRA files: which part of a pair a key is, and which rows of which layer its module
// means. The spellings in circulation are in lora_keys.cc; docs/lora.md lists them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "spec/model_spec.h"

namespace h3s::checkpoint {

enum class LoraRole { kDown, kUp, kAlpha, kBias };  // A, B, alpha, a difference of the bias

struct LoraKey {
  std::string module;  // as written, without the suffix of its role
  LoraRole role = LoraRole::kDown;
};
// Empty: no role that is known, and none whose absence would leave a LoRA half applied.
std::optional<LoraKey> parse_lora_key(std::string_view key);

// Why a file with this key is refused as a whole: a kind of adapter whose other tensors would be wrong
// without it. Empty when it is none.
std::string_view refused_lora_kind(std::string_view key);

// Row i of B is row first_row + (i + shift) % rows of the layer.
struct LoraTarget {
  std::string layer;  // as in checkpoint::Part::name
  std::int64_t first_row = 0, rows = 0, shift = 0;
};

// Module names of a network in every spelling.
class LoraTargets {
 public:
  explicit LoraTargets(const spec::ModelSpec& spec);
  const LoraTarget* find(std::string_view module) const;  // null: no linear layer of this network

 private:
  void add(const std::string& name, const LoraTarget& target);
  std::map<std::string, LoraTarget, std::less<>> targets_;
};

}  // namespace h3s::checkpoint
