// The inputs of a run: a safetensors file with text states, conditions and sizes. docs/inputs.md has the
// table of keys.
//
// Opening checks everything, values included, and allocates nothing that grows with the tensors; data is
// converted to float32 when asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "mem/accountant.h"
#include "spec/layout.h"
#include "spec/model_spec.h"
#include "spec/patchify.h"

namespace h3s::sample {

class Inputs {
 public:
  // Throws Error(kIo / kBadFile) with one line "FILE: KEY: reason": unreadable or malformed files, missing or
  // unknown keys, a batch other than 1, sizes of 0, wrong widths, channels, grids or dtypes, tags out of
  // range, NaN or infinity.
  static Inputs open(const std::string& path, const spec::ModelSpec& model);

  const io::SafetensorsReader& file() const { return file_; }
  const spec::JobSpec& job() const { return job_; }
  spec::VideoShape video_shape() const;  // of the target
  spec::AudioShape audio_shape() const;

  // [text_len, text_dim] float32, in Space::kHost.
  mem::Buffer text(mem::Accountant& accountant) const;

  // Condition latents in the order of their segments: keyframes, then references. Shapes [1, C, t, h, w] and
  // [1, C, 2, A].
  const std::vector<const io::TensorInfo*>& visual_latents() const { return visual_latents_; }
  const std::vector<const io::TensorInfo*>& audio_latents() const { return audio_latents_; }

  // Latents a run with denoise < 1 starts from; null when the file has none. Both or neither.
  const io::TensorInfo* initial_video() const { return file_.find("initial.video"); }
  const io::TensorInfo* initial_audio() const { return file_.find("initial.audio"); }

  // All values of a tensor of this file as float32, in Space::kHost.
  mem::Buffer load(const io::TensorInfo& info, mem::Accountant& accountant, const std::string& tag) const;

 private:
  explicit Inputs(io::SafetensorsReader file) : file_(std::move(file)) {}

  io::SafetensorsReader file_;
  spec::ModelSpec model_;
  spec::JobSpec job_;
  std::vector<const io::TensorInfo*> visual_latents_, audio_latents_;
};

}  // namespace h3s::sample
