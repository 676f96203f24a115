#include "checkpoint/tags.h"

#include "base/error.h"
#include "io/json.h"

namespace h3s::checkpoint {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxTagBytes = 65536;  // real tags have 27 to 120

// Null when the field is given neither in the tag nor in its `params`.
const json* find_field(const json& tag, const char* name) {
  if (const auto it = tag.find(name); it != tag.end()) return &*it;
  const auto params = tag.find("params");
  if (params == tag.end() || !params->is_object()) return nullptr;
  const auto it = params->find(name);
  return it == params->end() ? nullptr : &*it;
}

bool bool_field(const json& tag, const char* name, const std::string& where) {
  const json* value = find_field(tag, name);
  if (value != nullptr && !value->is_boolean())
    fail(Status::kBadFile, "{}: {} must be true or false, got {}", where, name, value->type_name());
  return value != nullptr && value->get<bool>();
}

std::int64_t positive_field(const json& tag, const char* name, std::int64_t absent,
                            const std::string& where) {
  const json* value = find_field(tag, name);
  if (value == nullptr) return absent;
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() - 1 >= std::uint64_t{1} << 31)
    fail(Status::kBadFile, "{}: {} must be a positive integer", where, name);
  return value->get<std::int64_t>();
}

std::string text_field(const json& tag, const char* name, const std::string& absent,
                       const std::string& where) {
  const json* value = find_field(tag, name);
  if (value == nullptr) return absent;
  if (!value->is_string())
    fail(Status::kBadFile, "{}: {} must be a string, got {}", where, name, value->type_name());
  return value->get<std::string>();
}

QuantTag parse_tag(const json& tag, const std::string& key, const std::string& where) {
  const json* format = find_field(tag, "format");
  if (format == nullptr) fail(Status::kBadFile, "{}: the tag has no `format`", where);
  if (!format->is_string())
    fail(Status::kBadFile, "{}: `format` must be a string, got {}", where, format->type_name());
  return {.key = key,
          .format = format->get<std::string>(),
          .full_precision_matmul = bool_field(tag, "full_precision_matrix_mult", where),
          .convrot = bool_field(tag, "convrot", where),
          .convrot_group = positive_field(tag, "convrot_groupsize", QuantTag{}.convrot_group, where),
          .group_size = positive_field(tag, "group_size", QuantTag{}.group_size, where),
          .linear_dtype = text_field(tag, "linear_dtype", QuantTag{}.linear_dtype, where)};
}

QuantTag read_tag_tensor(const io::SafetensorsReader& file, const io::TensorInfo& info) {
  const std::string where = fmt::format("{}: {}", file.path(), io::printable(info.name));
  if (info.dtype != DType::kU8)
    fail(Status::kBadFile, "{}: a tag must be U8, got {}", where, dtype_name(info.dtype));
  if (info.bytes() > kMaxTagBytes)
    fail(Status::kBadFile, "{}: a tag of {} bytes, expected at most {}", where, info.bytes(), kMaxTagBytes);
  return parse_tag_text({reinterpret_cast<const char*>(file.data(info)), info.bytes()}, info.name, where);
}

// fn(layer, tensor)
template <typename Fn>
void for_tag_tensors(const io::SafetensorsReader& file, const std::string& prefix, Fn fn) {
  for (const io::TensorInfo& info : file.tensors())
    if (info.name.starts_with(prefix) && info.name.ends_with(kTagSuffix))
      fn(info.name.substr(0, info.name.size() - std::string_view(kTagSuffix).size()), info);
}

// Metadata names layers with or without the prefix; the tensor decides which.
std::string full_layer_name(const io::SafetensorsReader& file, const std::string& prefix,
                            const std::string& layer) {
  return file.find(layer + ".weight") == nullptr ? prefix + layer : layer;
}

void add_metadata_tags(const io::SafetensorsReader& file, const std::string& prefix,
                       std::map<std::string, QuantTag>& tags) {
  const auto entry = file.metadata().find(kQuantMetadataKey);
  if (entry == file.metadata().end()) return;
  const std::string where = fmt::format("{}: __metadata__.{}", file.path(), kQuantMetadataKey);
  const json root = io::parse_json_object(entry->second, where);
  const auto layers = root.find("layers");
  if (layers == root.end() || !layers->is_object())
    fail(Status::kBadFile, "{}: expected an object `layers`", where);
  for (const auto& [layer, value] : layers->items()) {
    const std::string layer_where = fmt::format("{}: {}", where, io::printable(layer));
    if (!value.is_object())
      fail(Status::kBadFile, "{}: expected an object, got {}", layer_where, value.type_name());
    const std::string name = full_layer_name(file, prefix, layer);
    const QuantTag tag =
        parse_tag(value, fmt::format("__metadata__.{}.{}", kQuantMetadataKey, layer), layer_where);
    if (const auto [it, added] = tags.emplace(name, tag); !added && !(it->second == tag))
      fail(Status::kBadFile, "{}: contradicts the tag {}", layer_where, io::printable(it->second.key));
  }
}

const char* legacy_format(const io::SafetensorsReader& file, const io::TensorInfo& marker) {
  switch (marker.dtype) {
    case DType::kF8E4M3:
    case DType::kF32:
      return "float8_e4m3fn";
    case DType::kF8E5M2:
      return "float8_e5m2";
    default:
      fail(Status::kBadFile, "{}: {}: dtype must be F8_E4M3, F8_E5M2 or F32, got {}", file.path(),
           io::printable(marker.name), dtype_name(marker.dtype));
  }
}

// The marker's dtype is the format; two elements ask for full-precision products.
void add_legacy_tags(const io::SafetensorsReader& file, const std::string& prefix,
                     std::map<std::string, QuantTag>& tags) {
  const io::TensorInfo* marker = file.find(prefix + kLegacyFp8Key);
  if (marker == nullptr) return;
  const std::string format = legacy_format(file, *marker);
  constexpr std::string_view kScale = ".scale_weight";
  for (const io::TensorInfo& info : file.tensors()) {
    if (!info.name.starts_with(prefix) || !info.name.ends_with(kScale)) continue;
    const std::string layer = info.name.substr(0, info.name.size() - kScale.size());
    const QuantTag tag{.key = marker->name,
                       .format = format,
                       .full_precision_matmul = marker->elements() == 2,
                       .legacy = true};
    if (const auto [it, added] = tags.emplace(layer, tag); !added)
      fail(Status::kBadFile, "{}: {}: contradicts the tag {}", file.path(), io::printable(info.name),
           io::printable(it->second.key));
  }
}

}  // namespace

std::map<std::string, QuantTag> read_tags(const io::SafetensorsReader& file, const std::string& prefix) {
  std::map<std::string, QuantTag> tags;
  for_tag_tensors(file, prefix, [&](const std::string& layer, const io::TensorInfo& info) {
    tags.emplace(layer, read_tag_tensor(file, info));
  });
  add_metadata_tags(file, prefix, tags);
  add_legacy_tags(file, prefix, tags);
  return tags;
}

std::map<std::string, QuantTag> readable_tags(const io::SafetensorsReader& file, const std::string& prefix) {
  std::map<std::string, QuantTag> tags;
  for_tag_tensors(file, prefix, [&](const std::string& layer, const io::TensorInfo& info) {
    QuantTag& tag = tags[layer] = {.key = info.name, .format = kBrokenTag};
    try {
      tag = read_tag_tensor(file, info);
    } catch (const Error&) {
    }
  });
  return tags;
}

QuantTag parse_tag_text(std::string_view text, const std::string& key, const std::string& where) {
  return parse_tag(io::parse_json_object(text, where), key, where);
}

std::string tag_text(const QuantTag& tag) {
  nlohmann::ordered_json out{{"format", tag.format}};
  const QuantTag absent;
  if (tag.convrot) out["convrot"] = true;
  if (tag.convrot_group != absent.convrot_group) out["convrot_groupsize"] = tag.convrot_group;
  if (tag.group_size != absent.group_size) out["group_size"] = tag.group_size;
  if (tag.linear_dtype != absent.linear_dtype) out["linear_dtype"] = tag.linear_dtype;
  if (tag.full_precision_matmul) out["full_precision_matrix_mult"] = true;
  return out.dump();
}

}  // namespace h3s::checkpoint
