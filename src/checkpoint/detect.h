// Which network a file holds: the prefix of its keys and the sizes they imply.
#pragma once

#include <map>
#include <string>

#include "checkpoint/tags.h"
#include "io/safetensors.h"
#include "spec/model_spec.h"

namespace h3s::checkpoint {

// "", "model.diffusion_model." or "diffusion_model.". Throws Error(kBadFile) when no prefix, or more than
// one, holds both patch projections.
std::string detect_prefix(const io::SafetensorsReader& file);

// Sizes from the shapes (a packed weight has two columns a byte, as its tag says), then compared with the
// metadata entry `config` (JSON, object `transformer`) when there is one. Throws Error(kBadFile) for missing
// keys, gaps in block numbers, shapes no network has, or a config that contradicts the tensors;
// Error(kUnsupported) for head_dim other than 128 or other than 16 rope frequencies.
spec::ModelSpec detect_spec(const io::SafetensorsReader& file, const std::string& prefix,
                            const std::map<std::string, QuantTag>& tags);

}  // namespace h3s::checkpoint
