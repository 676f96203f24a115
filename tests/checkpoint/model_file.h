// A small checkpoint held in memory, to be spoilt in one place and written out.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "io/safetensors.h"
#include "spec/model_spec.h"

namespace h3s::checkpoint {

enum class Form { kCurve, kFull };

spec::ModelSpec small_spec(Form form);

class ModelFile {
 public:
  explicit ModelFile(Form form = Form::kCurve, WeightFormat format = WeightFormat::kBF16,
                     const std::string& prefix = "");

  // What the file holds, metadata included.
  explicit ModelFile(const io::SafetensorsReader& file);

  std::map<std::string, std::string> metadata;

  void erase(const std::string& key);
  // Replaces the tensor or adds it at the end; `bytes` is cut or filled with zeros to the size of the shape.
  void set(const std::string& key, DType dtype, const std::vector<std::int64_t>& shape, std::string bytes);
  void set_floats(const std::string& key, const std::vector<std::int64_t>& shape,
                  const std::vector<float>& values);
  void set_text(const std::string& key, const std::string& text);  // U8 [size]
  const std::string& bytes(const std::string& key) const { return entry(key).bytes; }
  const io::TensorDecl& decl(const std::string& key) const { return entry(key).decl; }
  std::vector<std::string> keys() const;

  void write(const std::string& path) const;

 private:
  struct Entry {
    io::TensorDecl decl;
    std::string bytes;
  };
  const Entry& entry(const std::string& key) const;

  std::vector<Entry> entries_;
};

}  // namespace h3s::checkpoint
