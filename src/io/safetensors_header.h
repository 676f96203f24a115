// The JSON header of a safetensors file: parsed and checked against the size of the data that follows it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace h3s::io {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader
inline constexpr const char* kMetadataKey = "__metadata__";

struct Header {
  std::vector<TensorInfo> tensors;     // in the order of their data
  std::vector<std::uint32_t> by_name;  // positions in `tensors`, names ascending
  std::map<std::string, std::string> metadata;
  std::uint64_t data_bytes = 0;  // end of the last tensor
};

// Bytes of a tensor; empty when a dimension is negative or the product overflows 63 bits.
std::optional<std::uint64_t> tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape);

// Parses `json` and checks names, dtypes, shapes and that the ranges tile the data from 0 without hole or
// overlap. Throws Error(kBadFile) "PATH: KEY: reason", with KEY "header" where no tensor is to blame. The end
// is not compared with a file; memory used is a small multiple of json.size().
Header parse_header(const std::string& path, std::string_view json);

}  // namespace h3s::io
