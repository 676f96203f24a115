// What `inspect` says about a file, also about one that Checkpoint::open refuses.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/findings.h"
#include "io/safetensors.h"
#include "spec/model_spec.h"

namespace h3s::checkpoint {

// Layers of one kind stored in one format.
struct FormatCount {
  std::string kind;    // "qkv", "out", ..., "norm", "table", "other"
  std::string format;  // a name out of the format table, a dtype, or an unknown tag as written
  std::int64_t count = 0;
  std::uint64_t bytes = 0;  // weights, biases, scales and tags together
};

struct Report {
  std::string path;
  std::uint64_t file_bytes = 0, trailing_bytes = 0;
  std::size_t num_tensors = 0;
  std::map<std::string, std::string> metadata;
  std::optional<std::string> prefix;    // empty optional: no H3 keys
  std::optional<spec::ModelSpec> spec;  // empty optional: the keys make no network
  bool quantised = false;
  std::vector<FormatCount> formats;  // in the order of the kinds
  std::vector<Finding> findings;
  std::optional<std::string> refusal;  // why Checkpoint::open refuses the file; empty: it loads
};

// Describes as much of the file as can be read. Reads header, tags, scales, tables, a page at the end of
// each large tensor and, of a file that loads, rows of eight blocks. Throws Error(kIo) only when the file
// cannot be opened at all.
Report describe(const std::string& path, const io::ReadOptions& options);

}  // namespace h3s::checkpoint
