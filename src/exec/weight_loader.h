// From the checkpoint's bytes to weights in arithmetic form.
//
// Per tensor, the stock rules: matrices of blocks are stored in the compute type (bf16 when computing in
// bf16; as in the file when computing in f32), stay or become int8 codes, or become the bf16 numbers of
// floating-point codes; norms and biases are rounded to the compute
// type and held as f32; the f32 islands (patch projections, heads, time embedder, AdaLN of the curve form)
// keep their stored values, rounded to bf16 when the file carries quantisation tags. Computing in f32, and
// where the file asks for full-precision products, quantised matrices are dequantised. A matrix whose stored
// bytes are already right, and aligned, is used where the file is mapped when the device is the host;
// everything else is written into the slot, by several threads where the device is not the host.
//
// LoRAs of the checkpoint come with the layer they change, from their own mapped files into its slot: as a
// model::LowRank beside the untouched weight, or added to it as it is built (checkpoint/lora.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/carver.h"
#include "model/weights.h"

namespace h3s::exec {

// Threads that copy and decode: one where the device is the host, whose processors the ops use.
int loading_threads(bool device_is_host);
// Threads that merge LoRAs into weights: all there are, for nothing computes without these weights.
int merging_threads();
// From a mapped file into a slot.
void load_bytes(const std::byte* src, std::int64_t bytes, int threads, std::byte* dst);

// Where one unit of weights is built: `device` is what ops will see, `host` the same bytes as the CPU may
// write them (equal where the device is the host). Null pointers: only measure.
struct SlotMemory {
  void* device = nullptr;
  void* host = nullptr;
};

// Bytes that the weights ask for.
struct WeightSizes {
  // A slot for each unit of weights:
  std::int64_t globals = 0, conditioning = 0;
  std::vector<std::int64_t> blocks;  // of the network, in order
  std::int64_t largest_block = 0;    // of those
  std::int64_t largest_refiner_block = 0;
  std::int64_t merge_bytes = 0;         // of ordinary memory that all loading shares: with_merge_memory()
  std::int64_t kept_input_row = 0;      // of any block but the refiner's: see model::kept_input_row_bytes()
  std::int64_t low_rank_row_bytes = 0;  // the most that x . a^T of any linear takes: model::LowRank
  // Whether a linear of any block, refiner included, or the text projection has one input scale for all rows
  // that the file does not give: model::LinearWeight::needs_peak().
  bool blocks_need_peaks = false, text_needs_peak = false;
};

// Copyable; copies share the sizes.
class WeightLoader {
 public:
  WeightLoader(const checkpoint::Checkpoint& checkpoint, DType compute, bool device_is_host);

  const checkpoint::Checkpoint& checkpoint() const { return checkpoint_; }
  DType compute() const { return compute_; }
  const WeightSizes& sizes() const { return *sizes_; }  // measured once, at construction

  // Of sizes().merge_bytes: what LoRAs are merged in, without which no layer that they change can be loaded.
  // One layer at a time, however many blocks are being loaded; must outlive the loading.
  WeightLoader with_merge_memory(void* memory) const;

  // `prefix` is "blocks.7" or "token_refiner.blocks.0". Each fills `used` with the bytes written from the
  // slot's start.
  model::BlockWeights load_block(const std::string& prefix, bool adaln, SlotMemory slot,
                                 std::int64_t* used) const;
  model::GlobalWeights load_globals(SlotMemory slot, std::int64_t* used) const;
  model::ConditioningWeights load_conditioning(SlotMemory slot, std::int64_t* used) const;

  // The kernel's page cache: this block's pages will be read soon / are no longer needed by this process.
  void will_need(const std::string& prefix) const;
  void release_pages(const std::string& prefix) const;

 private:
  class Builder;
  WeightSizes measure() const;
  const checkpoint::Checkpoint& checkpoint_;
  DType compute_;
  bool device_is_host_;
  int threads_;
  struct Merging;
  std::shared_ptr<Merging> merging_;  // null: no memory to merge in
  std::shared_ptr<const WeightSizes> sizes_;
};

}  // namespace h3s::exec
