// A run between two steps, on disk: what a killed run needs to go on to the same bits.
//
// A safetensors file: "state" F32 [elements] (the sampler's, audio carried), "sigmas" F32 [steps + 1];
// metadata: the settings that decide the bits, "steps_done" and "h3s_state" = 1. Written beside itself and
// renamed, so a kill while saving leaves the previous state.
#pragma once

#include <map>
#include <string>

#include "io/safetensors.h"
#include "sample/sampler.h"

namespace h3s::sample {

// Everything the bits of a run depend on, by name; what does not change them (chunks, threads, budgets) stays
// out.
using Settings = std::map<std::string, std::string>;

// "OUT.safetensors" -> "OUT.state.safetensors".
std::string state_path(const std::string& output_path);

// Names a file by its size, keys, dtypes, shapes, offsets and metadata, 16 hexadecimal digits: a checkpoint
// is too large to hash whole.
std::string header_fingerprint(const io::SafetensorsReader& file);
// The same with the data.
std::string content_fingerprint(const io::SafetensorsReader& file);

// Throws Error(kIo); then the previous state file is still there.
void save_state(const std::string& path, const EulerSampler& sampler, const Settings& settings);

// Whether the file can be taken up by a sampler of these options: needs no memory of size. Throws Error(kIo)
// when there is no such file, Error(kBadFile) when it is no state file, or holds values that are not finite,
// and Error(kInvalidArgument) naming every setting that differs.
void check_state(const std::string& path, const SamplerOptions& options, const Settings& settings);

// Restores the sampler; throws as check_state.
void load_state(const std::string& path, EulerSampler& sampler, const Settings& settings);

}  // namespace h3s::sample
