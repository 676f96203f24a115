// Quantisation tags: what a file says about the format of each layer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "io/safetensors.h"

namespace h3s::checkpoint {

inline constexpr const char* kTagSuffix = ".comfy_quant";
inline constexpr const char* kQuantMetadataKey = "_quantization_metadata";
inline constexpr const char* kLegacyFp8Key = "scaled_fp8";

struct QuantTag {
  std::string key;     // where the tag stands in the file, for messages
  std::string format;  // as written; may be a name nobody knows
  bool full_precision_matmul = false;
  bool convrot = false;
  std::int64_t convrot_group = 256;
  std::int64_t group_size = 16;       // W4A8
  std::string linear_dtype = "int4";  // W4A4
  bool legacy = false;                // from `scaled_fp8`: companions have their older names
  bool operator==(const QuantTag& other) const {
    return format == other.format && full_precision_matmul == other.full_precision_matmul &&
           convrot == other.convrot && convrot_group == other.convrot_group &&
           group_size == other.group_size && linear_dtype == other.linear_dtype && legacy == other.legacy;
  }
};

// Layer (full name, prefix included) to its tag, from `LAYER.comfy_quant` tensors (U8, JSON text) under
// `prefix`, from the metadata entry `_quantization_metadata`, and from the legacy key `scaled_fp8`, which
// tags every layer that has a `scale_weight`. Fields may lie in the tag or in its object `params`. Throws
// Error(kBadFile) for a tag that is no JSON object, lacks `format`, has fields of the wrong type, or
// contradicts the other source.
std::map<std::string, QuantTag> read_tags(const io::SafetensorsReader& file, const std::string& prefix);

// Of a file whose tags read_tags() refuses: those of tensors, a broken one with kBrokenTag for a format.
inline constexpr const char* kBrokenTag = "broken tag";
std::map<std::string, QuantTag> readable_tags(const io::SafetensorsReader& file, const std::string& prefix);

// The text of a `.comfy_quant` tensor under `key`; `where` begins messages. Throws as read_tags().
QuantTag parse_tag_text(std::string_view text, const std::string& key, const std::string& where);
std::string tag_text(const QuantTag& tag);

}  // namespace h3s::checkpoint
