// What is suspicious about a checkpoint, whether it loads or not.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tags.h"
#include "io/safetensors.h"
#include "spec/model_spec.h"

namespace h3s::checkpoint {

enum class Severity { kNote, kWarning };

struct Finding {
  Severity severity = Severity::kNote;
  std::string text;  // one line
};

// As much of the file as could be read.
struct Examined {
  const io::SafetensorsReader& file;
  const std::string& prefix;
  const std::optional<spec::ModelSpec>& spec;
  const std::map<std::string, QuantTag>& tags;
};

// Reads scales, other plain tensors of up to 16 MiB, the rope table and a page at the end of each large
// tensor.
std::vector<Finding> find_suspicious(const Examined& examined);

// The warnings that a run can afford to look for, of a checkpoint that loads: zeros at the end of tensors and
// rows in the wrong order. Reads a page of each large tensor and about 20 MB of each of two blocks.
std::vector<Finding> quick_warnings(const Checkpoint& checkpoint);

}  // namespace h3s::checkpoint
