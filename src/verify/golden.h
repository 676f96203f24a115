// Reference files of the stock implementation: what they hold and how to rebuild the job they recorded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "io/safetensors.h"
#include "spec/layout.h"

namespace h3s::verify {

// f32 host arrays of a job, in the shapes Session takes.
struct JobInputs {
  std::vector<float> text, video, audio, visual_rows, audio_rows;
};

struct Golden {
  // Throws Error(kBadFile) naming file and reason when it is not of the reference format.
  static Golden open(const std::string& path);

  io::SafetensorsReader file;
  DType compute = DType::kBF16;  // of the stored result
  std::string format;            // weight format of the block linears: "bf16", "int8_tensorwise", ...
  spec::ModelSpec spec;
  std::uint64_t seed = 0;
  float sigma = 0;
  spec::JobSpec job;
  spec::TimestepOptions timesteps;
  JobInputs inputs;
  bool sampled = false;  // a large file: rows and samples instead of whole tensors

  // Values of a tensor as f32, whatever it is stored as.
  std::vector<float> floats(const std::string& name) const;
  bool has(const std::string& name) const { return file.find(name) != nullptr; }
  // The file that holds the same job in f32, or empty when there is none beside it.
  std::string f32_sibling() const;
};

// Writes the checkpoint the file was made with (weights from the generator, block linears in
// `golden.format`).
void write_checkpoint(const Golden& golden, const std::string& path);

// Bytes of the tensors it writes.
std::uint64_t checkpoint_bytes(const Golden& golden);

// True for formats write_checkpoint can make.
bool can_rebuild(const Golden& golden);

}  // namespace h3s::verify
