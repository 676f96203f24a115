// Any checkpoint to another weight format, layer by layer in bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/recipe.h"
#include "checkpoint/row_map.h"

namespace h3s::checkpoint {

struct ConvertOptions {
  std::vector<LayerRule> rules;  // the last that matches a linear decides; without one it stays as stored
  std::optional<WeightFormat> decode_others;  // a plain format: quantised layers without a rule get it
  StoredRows stored;                          // order of rows in the input; the output has the network's
  int threads = 2;                            // the bytes do not depend on it
};

// Bytes of tensor data written so far and in all; from the calling thread, after every piece.
using ConvertProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

struct ConvertSummary {
  std::map<std::string, std::int64_t> layers;  // format to the number of linears stored in it
  std::int64_t kept = 0;                       // linears with the bytes of the input
  std::int64_t requantised = 0;                // that were quantised already: errors add up
  std::int64_t fitted = 0;                     // W4A8 with levels of their own; known once written
  std::uint64_t bytes = 0;                     // of tensor data
};

// What a conversion would write, without writing it.
ConvertSummary plan_conversion(const Checkpoint& input, const ConvertOptions& options);

// Writes `path` whole and found to load, or not at all, in the key layout of the input: linears and tables in
// the order of the network, then all other tensors as they are. Quantisers take weights rounded to bf16 and
// are those of encode.h; layers that are quantised already are dequantised as stock does it in bf16. Tags
// become `LAYER.comfy_quant` tensors. asym_w4a8_int8 gets the levels of w4a8_levels(). Memory: 5 MiB a thread
// and the scales of one layer, 10 MB at real size; mapped pages of the input are given back.
//
// Throws Error(kInvalidArgument) for a rule that matches nothing or asks for what a layer cannot be stored
// in, Error(kBadFile) for weights that are not finite or all zero where the format has no scale for that,
// Error(kIo) also when the disk has too little room; then nothing was written.
ConvertSummary convert_checkpoint(const Checkpoint& input, const std::string& path,
                                  const ConvertOptions& options, const ConvertProgress& progress);

}  // namespace h3s::checkpoint
