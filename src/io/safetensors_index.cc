#include "io/safetensors_index.h"

#include "base/error.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace h3s::io {
namespace {

constexpr const char* kMap = "weight_map";

// A plain name: an index from elsewhere must not make this program open other files.
bool is_plain_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.find('/') == name.npos && name.find('\0') == name.npos;
}

}  // namespace

bool is_safetensors_index(std::string_view path) {
  return path.ends_with(".index.json");
}

std::map<std::string, std::string> read_safetensors_index(const std::string& path) {
  const MappedFile file(path);
  if (file.size() > kMaxHeaderBytes)
    fail(Status::kBadFile, "{}: index: {} bytes, expected at most {}", path, file.size(), kMaxHeaderBytes);
  const nlohmann::json root = parse_json_object(file.text(), fmt::format("{}: index", path));
  const auto files = root.find(kMap);
  if (files == root.end() || !files->is_object() || files->empty())
    fail(Status::kBadFile, "{}: {}: expected an object of at least one key", path, kMap);
  std::map<std::string, std::string> out;
  for (const auto& [key, name] : files->items()) {
    if (!name.is_string() || !is_plain_name(name.get<std::string>()))
      fail(Status::kBadFile, "{}: {}: expected the name of a .safetensors file beside the index, got {}",
           path, printable(key), printable(name.dump(-1, ' ', true)));
    out.emplace(key, name.get<std::string>());
  }
  return out;
}

}  // namespace h3s::io
