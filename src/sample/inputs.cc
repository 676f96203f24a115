#include "sample/inputs.h"

#include <utility>

#include "base/error.h"
#include "sample/float_buffer.h"
#include "sample/inputs_reader.h"
#include "sample/widen.h"

namespace h3s::sample {

Inputs Inputs::open(const std::string& path, const spec::ModelSpec& model) {
  Inputs inputs(io::SafetensorsReader::open(path));
  inputs.model_ = model;
  InputsReader reader(inputs.file_, model);
  InputsContent content = reader.read();
  inputs.job_ = std::move(content.job);
  inputs.visual_latents_ = std::move(content.visual_latents);
  inputs.audio_latents_ = std::move(content.audio_latents);
  return inputs;
}

spec::VideoShape Inputs::video_shape() const {
  return {model_.video_channels, job_.latent_t, job_.latent_h, job_.latent_w};
}

spec::AudioShape Inputs::audio_shape() const {
  return {model_.audio_channels, job_.audio_t};
}

mem::Buffer Inputs::text(mem::Accountant& accountant) const {
  return load(file_.at("text"), accountant, "text states");
}

mem::Buffer Inputs::load(const io::TensorInfo& info, mem::Accountant& accountant,
                         const std::string& tag) const {
  const std::int64_t count = info.elements();
  mem::Buffer out = allocate_floats(accountant, count, tag);
  widen(file_.data(info), info.dtype, 0, count, out.as<float>());
  return out;
}

}  // namespace h3s::sample
