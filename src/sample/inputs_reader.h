// Checks an inputs file against its table of keys and collects what a run needs from it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/safetensors.h"
#include "spec/layout.h"
#include "spec/model_spec.h"

namespace h3s::sample {

struct InputsContent {
  spec::JobSpec job;
  std::vector<const io::TensorInfo*> visual_latents, audio_latents;  // in the order of their segments
};

class InputsReader {
 public:
  InputsReader(const io::SafetensorsReader& file, const spec::ModelSpec& model)
      : file_(file), model_(model) {}

  // Throws Error(kBadFile) "FILE: KEY: reason".
  InputsContent read();

 private:
  using Shape = std::vector<std::int64_t>;

  template <typename... Args>
  [[noreturn]] void reject(const std::string& key, fmt::format_string<Args...> format, Args&&... args) const {
    fail(Status::kBadFile, "{}: {}: {}", file_.path(), key, fmt::format(format, std::forward<Args>(args)...));
  }

  nlohmann::json description() const;
  std::int64_t count(const nlohmann::json& object, const std::string& where, const char* field,
                     std::int64_t low) const;
  void refuse_other_fields(const nlohmann::json& object, const std::string& where,
                           std::initializer_list<const char*> fields) const;
  const nlohmann::json& list(const nlohmann::json& description, const char* field) const;

  void read_sizes(const nlohmann::json& description);
  void read_text();
  void read_tags();
  void read_keyframe(const nlohmann::json& entry, std::size_t idx);
  void read_reference(const nlohmann::json& entry, std::size_t idx);
  void read_reference_picture(spec::Reference& reference, const std::string& key);
  void read_reference_sound(spec::Reference& reference, const std::string& key);
  spec::ReferenceKind reference_kind(const nlohmann::json& entry, const std::string& where) const;
  void read_initial();
  void refuse_unknown_keys() const;
  void check_layout() const;  // limits of the sizes as a whole

  // A tensor of floating-point values, or null when the key is absent; the shape is checked by the caller.
  const io::TensorInfo* floats(const std::string& key);
  // [1, C, t, h, w] or [1, C, 2, A] with channels as the model has them; null when absent.
  const io::TensorInfo* video_latent(const std::string& key);
  const io::TensorInfo* audio_latent(const std::string& key);
  void check_latent(const io::TensorInfo& info, const char* form, std::size_t rank,
                    std::int64_t channels) const;
  void check_target_frame(const io::TensorInfo& info) const;

  const io::SafetensorsReader& file_;
  const spec::ModelSpec& model_;
  InputsContent content_;
  std::set<std::string, std::less<>> known_keys_;
};

}  // namespace h3s::sample
