// The alpha of a LoRA's pairs, from wherever trainers put it: a tensor of the module, or the file's metadata.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace h3s::checkpoint {

class LoraAlphas {
 public:
  struct Alpha {
    std::string key;  // where it stands, for messages
    double value = 0;
  };

  // Reads the file's metadata. Throws Error(kBadFile / kUnsupported) naming file, entry and reason.
  explicit LoraAlphas(const io::SafetensorsReader& file);

  // Of a module as the file calls it; `stored` is its alpha tensor or null. Empty: the file names none.
  std::optional<Alpha> of(const std::string& module, const io::TensorInfo* stored) const;
  // The factor is alpha / sqrt(r) in place of alpha / r.
  bool over_root() const { return over_root_; }

 private:
  void read_adapter_settings();
  void read_patterns(const std::string& where, const std::string& text);
  double stored_alpha(const io::TensorInfo& info) const;
  double number(const std::string& where, const std::string& text) const;
  [[noreturn]] void refuse(const std::string& where, std::string_view reason) const;

  const io::SafetensorsReader& file_;
  std::vector<Alpha> patterns_;  // by the end of a module's name
  std::optional<Alpha> all_;
  std::string source_;  // entry of patterns_
  bool over_root_ = false;
};

}  // namespace h3s::checkpoint
