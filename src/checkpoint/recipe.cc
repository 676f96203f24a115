#include "checkpoint/recipe.h"

#include <fnmatch.h>

#include <array>

#include "base/error.h"
#include "checkpoint/formats.h"

namespace h3s::checkpoint {
namespace {

using Rules = std::vector<LayerRule>;

Rules with(Rules rules, const LayerRule& more) {
  rules.push_back(more);
  return rules;
}

// Published full files hold the modulation of the blocks as int8, pruned ones all modulation as fp16.
Rules int8_rules(const spec::ModelSpec& spec) {
  const Rules blocks = block_rules(WeightFormat::kInt8Tensorwise);
  return spec.curve() ? with(blocks, {"*adaln_proj.linear", WeightFormat::kF16})
                      : with(blocks, {"blocks.*.adaln_proj.linear", WeightFormat::kInt8Tensorwise});
}

// fc2, whose input has the widest range, is multiplied in full precision.
Rules fp8_rules(const spec::ModelSpec&) {
  return with(block_rules(WeightFormat::kFloat8E4M3), {"blocks.*.mlp.fc2", WeightFormat::kFloat8E4M3, true});
}

Rules w4a8_rules(const spec::ModelSpec&) {
  return block_rules(WeightFormat::kAsymW4A8);
}

Rules w4a8_int8_refiner_rules(const spec::ModelSpec&) {
  return with(block_rules(WeightFormat::kAsymW4A8), {"token_refiner.*", WeightFormat::kInt8Tensorwise});
}

Rules nvfp4_rules(const spec::ModelSpec&) {
  return block_rules(WeightFormat::kNvfp4);
}

constexpr std::array<Recipe, 5> kRecipes{{
    {"int8", "block linears int8 ConvRot; modulation fp16 (curve form) or int8 (full form)", int8_rules},
    {"fp8", "block linears float8_e4m3fn, fc2 multiplied in full precision; no input_scale", fp8_rules},
    {"w4a8", "block linears asym_w4a8_int8", w4a8_rules},
    {"w4a8-int8-refiner", "the same, token refiner int8 ConvRot", w4a8_int8_refiner_rules},
    {"nvfp4", "block linears nvfp4", nvfp4_rules},
}};

}  // namespace

bool LayerRule::matches(const std::string& layer) const {
  return ::fnmatch(pattern.c_str(), layer.c_str(), 0) == 0;
}

LayerRule parse_layer_rule(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == text.npos || equals == 0)
    fail(Status::kInvalidArgument, "[convert] expected PATTERN=FORMAT, got \"{}\"", text);
  const std::optional<WeightFormat> format = writable_format(text.substr(equals + 1));
  if (!format)
    fail(Status::kInvalidArgument, "[convert] \"{}\" is no weight format that can be written, in \"{}\"",
         text.substr(equals + 1), text);
  return {text.substr(0, equals), *format};
}

std::vector<LayerRule> block_rules(WeightFormat format) {
  return {{"blocks.*.attn.*", format}, {"blocks.*.mlp.*", format}};
}

std::span<const Recipe> recipes() {
  return kRecipes;
}

const Recipe* find_recipe(std::string_view name) {
  for (const Recipe& recipe : kRecipes)
    if (name == recipe.name) return &recipe;
  return nullptr;
}

std::optional<WeightFormat> writable_format(std::string_view name) {
  if (name == "int8") return WeightFormat::kInt8Tensorwise;
  for (std::size_t i = 0; i < formats().size(); ++i)
    if (name == formats()[i].name && formats()[i].bind != nullptr) return static_cast<WeightFormat>(i);
  return std::nullopt;
}

std::vector<std::string> writable_format_names() {
  std::vector<std::string> names{"int8"};
  for (const FormatRow& row : formats())
    if (writable_format(row.name)) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> synthetic_format_names() {
  std::vector<std::string> names = writable_format_names();
  std::erase_if(names, [](const std::string& name) {
    const WeightFormat format = *writable_format(name);
    return format == WeightFormat::kF16 || format == WeightFormat::kF32;
  });
  return names;
}

}  // namespace h3s::checkpoint
