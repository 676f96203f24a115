#include "checkpoint/lora_keys.h"

#include <algorithm>
#include <array>
#include <utility>

#include "checkpoint/parts.h"

namespace h3s::checkpoint {
namespace {

using namespace std::string_view_literals;

// Longer endings first where one ends in another.
constexpr std::array kRoles{std::pair{".lora_A.default.weight"sv, LoraRole::kDown},
                            std::pair{".lora_B.default.weight"sv, LoraRole::kUp},
                            std::pair{".lora_A.weight"sv, LoraRole::kDown},
                            std::pair{".lora_B.weight"sv, LoraRole::kUp},
                            std::pair{".lora_A"sv, LoraRole::kDown},
                            std::pair{".lora_B"sv, LoraRole::kUp},
                            std::pair{".lora_down.weight"sv, LoraRole::kDown},
                            std::pair{".lora_up.weight"sv, LoraRole::kUp},
                            std::pair{".lora.down.weight"sv, LoraRole::kDown},
                            std::pair{".lora.up.weight"sv, LoraRole::kUp},
                            std::pair{".alpha"sv, LoraRole::kAlpha},
                            std::pair{".diff_b"sv, LoraRole::kBias}};

// Found anywhere in a key.
constexpr std::array kRefused{
    std::pair{".dora_scale"sv, "DoRA: the magnitude of the weight changes too, which is not supported"sv},
    std::pair{".lora_magnitude_vector"sv,
              "DoRA: the magnitude of the weight changes too, which is not supported"sv},
    std::pair{".hada_"sv, "LoHa, which is not supported"sv},
    std::pair{".lokr_"sv, "LoKr, which is not supported"sv},
    std::pair{".oft_"sv, "OFT, which is not supported"sv},
    std::pair{".boft_"sv, "BOFT, which is not supported"sv},
    std::pair{".lora_mid."sv, "a pair with a middle factor, which is not supported"sv},
    std::pair{".a1.weight"sv, "GLoRA, which is not supported"sv},
    std::pair{".b1.weight"sv, "GLoRA, which is not supported"sv},
    std::pair{".reshape_weight"sv, "a head bank, which is not supported"sv},
    std::pair{".set_weight"sv, "a weight to replace the layer's, which is not supported"sv},
    std::pair{".lora_B.bias"sv, "a bias of B, which is not supported"sv},
    std::pair{".lora_up.bias"sv, "a bias of B, which is not supported"sv}};

constexpr std::array kPrefixes{"base_model.model."sv, "model.diffusion_model."sv, "diffusion_model."sv,
                               "transformer."sv};
constexpr std::string_view kUnderscored = "lora_unet_";

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

// "blocks.7.": as this network's files, and as the layouts that LoRAs are trained on, call it.
std::array<std::string, 2> spellings(const std::string& block) {
  constexpr std::string_view kRefiner = "token_refiner.";
  if (block.starts_with(kRefiner)) return {block, "token_refiner.refiner_" + block.substr(kRefiner.size())};
  return {block, "transformer_" + block};
}

}  // namespace

std::optional<LoraKey> parse_lora_key(std::string_view key) {
  for (const auto& [ending, role] : kRoles)
    if (key.size() > ending.size() && key.ends_with(ending))
      return LoraKey{std::string(key.substr(0, key.size() - ending.size())), role};
  return {};
}

std::string_view refused_lora_kind(std::string_view key) {
  for (const auto& [part, reason] : kRefused)
    if (key.find(part) != std::string_view::npos) return reason;
  if (key.ends_with(".diff")) return "a whole difference of the weight, which is not supported";
  return {};
}

LoraTargets::LoraTargets(const spec::ModelSpec& spec) {
  for (const Part& part : model_parts(spec)) {
    if (!is_linear(part.kind)) continue;
    const LoraTarget whole{part.name, 0, part.shape[0], 0};
    const auto alias = [&](std::string_view own, std::string_view other, const LoraTarget& target) {
      if (!part.name.ends_with(own)) return;
      for (const std::string& block : spellings(part.name.substr(0, part.name.size() - own.size())))
        add(block + std::string(other), target);
    };
    add(part.name, whole);
    for (const char* own : {"attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2", "adaln_proj.linear"})
      if (part.name.starts_with("blocks.") || part.name.starts_with("token_refiner.")) alias(own, own, whole);
    for (std::int64_t i = 0; i < 3; ++i) {
      const LoraTarget rows{part.name, i * spec.inner(), spec.inner(), 0};
      const std::string which(1, "qkv"[i]);
      alias("attn.qkv_proj", "attn.to_" + which, rows);
      alias("attn.qkv_proj", "attn." + which + "_proj", rows);
    }
    alias("attn.out_proj", "attn.to_out.0", whole);
    alias("attn.out_proj", "attn.to_out", whole);
    // There the half that is multiplied comes first, here the gate.
    alias("mlp.fc1", "ff.net.0.proj", {part.name, 0, 2 * spec.ffn, spec.ffn});
    alias("mlp.fc2", "ff.net.2", whole);
  }
}

void LoraTargets::add(const std::string& name, const LoraTarget& target) {
  targets_.emplace(name, target);
  targets_.emplace(with_underscores(name), target);
}

const LoraTarget* LoraTargets::find(std::string_view module) const {
  for (bool stripped = true; stripped;) {
    stripped = false;
    for (const std::string_view prefix : kPrefixes)
      if (module.starts_with(prefix)) {
        module.remove_prefix(prefix.size());
        stripped = true;
      }
  }
  if (module.starts_with(kUnderscored)) module.remove_prefix(kUnderscored.size());
  const auto found = targets_.find(module);
  return found == targets_.end() ? nullptr : &found->second;
}

}  // namespace h3s::checkpoint
