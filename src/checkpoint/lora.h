// LoRAs: low-rank differences of the linear layers of a checkpoint, from files of their own.
//
// A pair A [r, K], B [rows, r] adds scale . B . A to rows of a weight [N, K]; scale = strength . alpha / r,
// or strength where a file has no alpha. Two ways to apply them:
//
//   runtime  the weight stays as it is; y += round(x . A^T) . B^T (model::LowRank)
//   merge    the weight is dequantised, added to and quantised again as its block is loaded (merge.h)
//
// Differences of biases are added to them in either mode. Where several apply to a layer they are taken in
// the order of the files and, in a file, of its keys.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/lora_keys.h"
#include "io/safetensors.h"

namespace h3s::checkpoint {

class Checkpoint;

enum class LoraMode { kRuntime, kMerge };
const char* lora_mode_name(LoraMode mode);

struct LoraRequest {
  std::string path;
  float strength = 1;
};

// Stored values of a LoRA's tensor; may be unaligned.
struct LoraTensor {
  const std::byte* data = nullptr;
  DType dtype = DType::kBF16;  // bf16, f16 or f32
  // out[i] = element first + i
  void read(std::int64_t first, std::span<float> out) const;
};

struct LoraPair {
  LoraTensor down, up;  // A [rank, K], B [target.rows, rank]
  std::int64_t rank = 0;
  float scale = 1;
  LoraTarget target;
  // The row of B that changes row `row` of the layer; -1: none does.
  std::int64_t up_row(std::int64_t row) const;
};

struct LoraBias {
  LoraTensor values;  // [target.rows]
  float strength = 1;
  LoraTarget target;
};

// What changes one layer.
struct LoraLayer {
  std::vector<LoraPair> pairs;
  std::vector<LoraBias> biases;

  std::int64_t rank() const;  // of all pairs together
  // The pairs as one: A [rank, k], its rows times the scales, and B [n, rank] with zeros where a pair changes
  // no row. Elements past rank() are zeros. Thread-safe.
  void down_row(std::int64_t rank_idx, std::span<float> out) const;
  void up_row(std::int64_t row, std::span<float> out) const;
  // bias[i] += strength . difference, one rounding to float for the product and one for the sum.
  void add_to_bias(std::span<float> bias) const;
};

// What became of a file's pairs and differences of biases.
struct LoraReport {
  struct Skipped {
    std::string key, reason;
  };
  std::string path;
  float strength = 1;
  std::int64_t applied = 0, total = 0;
  std::vector<Skipped> skipped;
  std::string text() const;  // "FILE: 311 of 312 applied; not: KEY (REASON), ..."
};

// The LoRAs of one run. Immutable and thread-safe; holds the files' mappings.
class LoraSet {
 public:
  // Reads every value that applies once, for ones that are not finite; keeps none. Throws Error(kBadFile /
  // kUnsupported), naming file, key and reason, for malformed files, for pairs without their other half or of
  // two ranks, for rows that one file changes twice, for adapters that are no LoRA, and for a file of which
  // nothing applies.
  static std::shared_ptr<const LoraSet> open(const Checkpoint& base, std::span<const LoraRequest> requests,
                                             LoraMode mode);

  LoraMode mode() const { return mode_; }
  // Memory that a thread merges in, whatever the layer; 0 in runtime mode. MergeWorkspace::part_bytes.
  std::int64_t merge_part_bytes() const { return merge_part_bytes_; }
  const LoraLayer* find(const std::string& layer) const;  // null: nothing changes it
  const std::vector<LoraReport>& reports() const { return reports_; }
  const std::vector<io::SafetensorsReader>& files() const { return files_; }

 private:
  void prepare_merging(const Checkpoint& base);
  LoraMode mode_ = LoraMode::kRuntime;
  std::int64_t merge_part_bytes_ = 0;
  std::vector<io::SafetensorsReader> files_;
  std::vector<LoraReport> reports_;
  std::map<std::string, LoraLayer> layers_;
};

}  // namespace h3s::checkpoint
