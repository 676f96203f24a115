// Which layer a conversion stores in which format: rules by name, and the mixtures that published files use.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "spec/model_spec.h"

namespace h3s::checkpoint {

struct LayerRule {
  // A shell pattern for layer names without prefix: "blocks.*.mlp.fc?"; * also stands for dots.
  std::string pattern;
  WeightFormat format = WeightFormat::kBF16;
  bool full_precision = false;  // the tag asks for full_precision_matrix_mult

  bool matches(const std::string& layer) const;
};

// "PATTERN=FORMAT". Throws Error(kInvalidArgument).
LayerRule parse_layer_rule(const std::string& text);

// The four linears of every block.
std::vector<LayerRule> block_rules(WeightFormat format);

struct Recipe {
  const char* name;
  const char* summary;
  std::vector<LayerRule> (*rules)(const spec::ModelSpec& spec);
};
std::span<const Recipe> recipes();
const Recipe* find_recipe(std::string_view name);  // null: unknown

// By a name of the format table, or "int8" for int8_tensorwise. Empty: unknown, or nothing can write it.
std::optional<WeightFormat> writable_format(std::string_view name);
std::vector<std::string> writable_format_names();
std::vector<std::string> synthetic_format_names();  // those of checkpoint_tensors()

}  // namespace h3s::checkpoint
