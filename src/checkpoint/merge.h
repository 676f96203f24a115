// LoRAs merged into the weight of a layer, some rows at a time, as stock merges them: nothing of the size of
// a file is ever held.
//
//   plain      W in the type it is held in (bf16, or f32 in islands and when computing in f32), widened to
//   f32;
//              for each pair, in order, + f(scale . sum_j B[n][j] A[j][k]), sums in f32, j ascending; rounded
//              once to the held type
//   quantised  W dequantised to bf16; for each pair + bf(scale . bf(sum_j bf(B) bf(A))), every sum with W
//              rounded to bf16; then quantised again with new scales. Codes are drawn (draw.h), the seed
//              being that of the text "diffusion_model.LAYER.weight"; W4A8 keeps its codebook.
//
// What int8_tensorwise becomes is what stock's GPU kernel draws. For the other formats stock draws from the
// generator of its framework; here all formats draw by the same counter, from the unrounded u where int8 and
// W4A4 take it in bf16.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/float16.h"
#include "checkpoint/checkpoint.h"

namespace h3s::checkpoint {

// Of a quantised layer that has LoRA pairs; both must outlive it. Finds the largest merged magnitude where
// the format needs it, by `threads` threads. Then thread-safe.
class MergedLayer {
 public:
  MergedLayer(const Checkpoint& checkpoint, const std::string& layer, int threads);

  // Why a layer cannot be merged into, with the key's suffix; empty: it can.
  static std::string problem(const LinearSource& source);

  float tensor_scale() const { return tensor_scale_; }  // fp8, nvfp4
  // Rows [begin, end) of k elements each, as RowCodec decodes stored ones. Of codes: also the rows' scales. T
  // is float or BF16, and so are the roundings inside. Throws Error(kBadFile) for a merged value that is not
  // finite.
  void codes(std::int64_t begin, std::int64_t end, std::int8_t* out, float* row_scales) const;
  void values(std::int64_t begin, std::int64_t end, BF16* out) const;
  template <typename T>
  void dequantize(std::int64_t begin, std::int64_t end, T* out) const;

 private:
  template <typename Fn>
  void for_merged_rows(std::int64_t begin, std::int64_t end, Fn fn) const;
  template <typename Decode>
  void decode(std::int64_t row, std::span<const BF16> merged, Decode decode) const;
  void check_merged(std::int64_t row, std::span<const BF16> merged) const;
  float find_largest(int threads) const;

  const Checkpoint& checkpoint_;
  const LinearSource source_;
  const LoraLayer& lora_;
  std::uint32_t seed_;
  float largest_ = 0, tensor_scale_ = 1;
};

// Rows [begin, end) of a plain layer, held in `held`, with the pairs of `lora`. T is float or BF16.
template <typename T>
void merged_plain_rows(const Checkpoint& checkpoint, const LinearSource& source, const LoraLayer& lora,
                       DType held, std::int64_t begin, std::int64_t end, T* out);

}  // namespace h3s::checkpoint
