#include "model_file.h"

#include <algorithm>

#include "checkpoint/synth.h"
#include "file_fixtures.h"
#include "io/safetensors_header.h"

namespace h3s::checkpoint {

spec::ModelSpec small_spec(Form form) {
  const bool curve = form == Form::kCurve;
  spec::ModelSpec spec;
  spec.hidden = 32;
  spec.layers = 3;
  spec.refiner_layers = 1;
  spec.heads = 1;
  spec.ffn = 64;
  spec.text_dim = 16;
  spec.time_dim = curve ? 8 : 24;
  spec.curve_grid = curve ? 5 : 0;
  if (!curve) spec.timestep_dim = 12;
  if (!curve) spec.time_hidden = 20;
  return spec;
}

ModelFile::ModelFile(Form form, WeightFormat format, const std::string& prefix) {
  const TempDir directory;
  const std::string path = directory.file("synthetic.safetensors");
  write_synthetic_checkpoint(path, {.spec = small_spec(form), .format = format, .seed = 1, .prefix = prefix},
                             nullptr);
  entries_ = ModelFile(io::SafetensorsReader::open(path)).entries_;
}

ModelFile::ModelFile(const io::SafetensorsReader& file) : metadata(file.metadata()) {
  for (const io::TensorInfo& info : file.tensors())
    entries_.push_back({{info.name, info.dtype, info.shape},
                        {reinterpret_cast<const char*>(file.data(info)), info.bytes()}});
}

const ModelFile::Entry& ModelFile::entry(const std::string& key) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.decl.name == key; });
  if (found == entries_.end()) throw std::logic_error("no such tensor: " + key);
  return *found;
}

std::vector<std::string> ModelFile::keys() const {
  std::vector<std::string> keys;
  for (const Entry& e : entries_) keys.push_back(e.decl.name);
  return keys;
}

void ModelFile::erase(const std::string& key) {
  entry(key);  // it must be there
  std::erase_if(entries_, [&](const Entry& e) { return e.decl.name == key; });
}

void ModelFile::set(const std::string& key, DType dtype, const std::vector<std::int64_t>& shape,
                    std::string bytes) {
  bytes.resize(io::tensor_bytes(dtype, shape).value());
  Entry changed{{key, dtype, shape}, std::move(bytes)};
  for (Entry& e : entries_)
    if (e.decl.name == key) return std::swap(e, changed);
  entries_.push_back(std::move(changed));
}

void ModelFile::set_floats(const std::string& key, const std::vector<std::int64_t>& shape,
                           const std::vector<float>& values) {
  set(key, DType::kF32, shape, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

void ModelFile::set_text(const std::string& key, const std::string& text) {
  set(key, DType::kU8, {static_cast<std::int64_t>(text.size())}, text);
}

void ModelFile::write(const std::string& path) const {
  std::vector<io::TensorDecl> tensors;
  for (const Entry& e : entries_) tensors.push_back(e.decl);
  io::SafetensorsWriter writer(path, tensors, metadata);
  for (const Entry& e : entries_) writer.write(e.bytes.data(), e.bytes.size());
  writer.finish();
}

}  // namespace h3s::checkpoint
