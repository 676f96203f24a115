// Builds inputs files for tests: a good one to start from, changed key by key.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "spec/model_spec.h"

namespace h3s::test {

struct TestTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

inline TestTensor floats(std::vector<std::int64_t> shape, float start = 0.25f) {
  TestTensor tensor{DType::kF32, shape, {}};
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  tensor.data.resize(static_cast<std::size_t>(count) * sizeof(float));
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = start + 0.125f * static_cast<float>(i % 17);
    std::memcpy(tensor.data.data() + static_cast<std::size_t>(i) * sizeof value, &value, sizeof value);
  }
  return tensor;
}

inline TestTensor integers(const std::vector<std::int64_t>& values) {
  TestTensor tensor{DType::kI64, {static_cast<std::int64_t>(values.size())}, {}};
  tensor.data.resize(values.size() * sizeof(std::int64_t));
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

// A small geometry: text width 12, 3 video and 5 audio channels.
inline spec::ModelSpec small_model() {
  spec::ModelSpec model;
  model.text_dim = 12;
  model.video_channels = 3;
  model.audio_channels = 5;
  return model;
}

class InputsFile {
 public:
  InputsFile() {
    about = {{"version", 1}, {"latent_t", 2}, {"latent_h", 4}, {"latent_w", 5}, {"audio_t", 6}};
    tensors["text"] = floats({7, 12});
  }
  ~InputsFile() { std::filesystem::remove(path()); }

  std::string path() const {
    return (std::filesystem::temp_directory_path() /
            fmt::format("h3s_inputs_test.{}.safetensors", ::getpid()))
        .string();
  }

  std::string write() const {
    std::vector<io::TensorDecl> declared;
    for (const auto& [name, tensor] : tensors) declared.push_back({name, tensor.dtype, tensor.shape});
    io::SafetensorsWriter writer(path(), declared,
                                 {{"h3s_inputs", about_text.empty() ? about.dump() : about_text}});
    for (const auto& [name, tensor] : tensors) writer.write(tensor.data.data(), tensor.data.size());
    writer.finish();
    return path();
  }

  nlohmann::json about;    // the metadata entry
  std::string about_text;  // instead of `about`, when not empty
  std::map<std::string, TestTensor> tensors;
};

}  // namespace h3s::test
