// LoRAs merged into the weight of a layer as stock merges them, some rows at a time and in memory that the
// caller gives: nothing of the size of a layer is held.
//
//   plain      W in the type it is held in (bf16, or f32 in islands and when computing in f32), widened to
//              f32; for each pair, in order, + f(scale . sum_j B[n][j] A[j][k]); rounded once to the held
//              type
//   quantised  W dequantised to bf16; for each pair + bf(scale . bf(sum_j bf(B) bf(A))), every sum with W
//              rounded to bf16; then quantised again with new scales. Codes are drawn (draw.h), the seed
//              being that of the text "diffusion_model.LAYER.weight"; W4A8 keeps its codebook.
//
// Sums over j are f32 chains of fused multiply-adds from zero, j ascending; of products of bf16 numbers,
// which are exact in f32.
//
// What int8_tensorwise becomes is what stock's GPU kernel draws. For the other formats stock draws from the
// generator of its framework; here all formats draw by the same counter, from the unrounded u where int8 and
// W4A4 take it in bf16.
#pragma once

#include <cstdint>
#include <string>

#include "base/float16.h"
#include "checkpoint/checkpoint.h"

namespace h3s::checkpoint {

// Threads that merge at a time, as many as the machine has up to this; memory for all of them is planned
// with, so that a plan does not depend on the machine it is made on.
inline constexpr int kMostMergeThreads = 16;

// Memory to merge in: a part for each thread, one after another, aligned as mem::kAlignment.
struct MergeWorkspace {
  std::byte* data = nullptr;
  std::int64_t part_bytes = 0;  // of each thread; merge_part_bytes() of the layer or more
  int threads = 1;
};

// Of one linear layer that has LoRA pairs; the checkpoint and the workspace must outlive it. Each of the
// functions writes the whole layer [n, k], as RowCodec decodes stored ones; throws Error(kInvalidArgument)
// "FILE: LAYER.weight: reason" where a changed weight is not finite.
class MergedLayer {
 public:
  MergedLayer(const Checkpoint& checkpoint, const std::string& layer, const MergeWorkspace& workspace);

  // Why a layer cannot be merged into, with the key's suffix; empty: it can.
  static std::string problem(const LinearSource& source);
  // What a thread needs of a workspace.
  static std::int64_t part_bytes(const LinearSource& source, const LoraLayer& lora);

  // Quantised layers. Of codes: also the rows' scales; of values: the scale of the whole weight is returned,
  // 1 where the format has none. T is float or BF16, and so are the roundings inside.
  void codes(std::int8_t* out, float* row_scales) const;
  float values(BF16* out) const;
  template <typename T>
  void dequantize(T* out) const;
  // Plain layers, held in `held`.
  template <typename T>
  void plain(DType held, T* out) const;

 private:
  class Part;
  class Requantizer;
  template <typename Fn>
  void for_parts(Fn fn) const;
  template <typename Decode, typename T>
  float requantize(T* out, Decode decode) const;
  void require_finite(std::int64_t row, float largest) const;

  const Checkpoint& checkpoint_;
  const std::string layer_;
  const LinearSource source_;
  const LoraLayer& lora_;
  const MergeWorkspace workspace_;
  std::uint32_t seed_;
};

}  // namespace h3s::checkpoint
