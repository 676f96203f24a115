// The rows of a fused matrix in another order: whole groups of consecutive rows change places.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "spec/model_spec.h"

namespace h3s::checkpoint {

struct RowMap {
  std::int64_t group_rows = 0;
  std::vector<std::int64_t>
      source;  // group g of the result is group source[g] of the file; empty: as they are

  bool identity() const { return source.empty(); }
  std::int64_t row(std::int64_t r) const {
    if (identity()) return r;
    return source[static_cast<std::size_t>(r / group_rows)] * group_rows + r % group_rows;
  }
};

// How the file differs from what the network expects.
struct StoredRows {
  bool interleaved_qkv = false;  // q, k, v of head 0, then of head 1, ...: the vendor's shards
  bool up_first_fc1 = false;     // up rows before gate rows
};

// From a file's order to all q, all k, all v, and to gate before up; identity for other layers. `layer` is
// the name of a linear, refiner blocks included.
inline RowMap row_map(std::string_view layer, const spec::ModelSpec& spec, const StoredRows& stored) {
  if (stored.interleaved_qkv && layer.ends_with("attn.qkv_proj")) {
    RowMap map{spec.head_dim, {}};
    for (std::int64_t part = 0; part < 3; ++part)
      for (std::int64_t head = 0; head < spec.heads; ++head) map.source.push_back(3 * head + part);
    return map;
  }
  if (stored.up_first_fc1 && layer.ends_with("mlp.fc1")) return {spec.ffn, {1, 0}};
  return {};
}

}  // namespace h3s::checkpoint
