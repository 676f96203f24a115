// Weight quantisers: a bf16 matrix to the tensors of a quantised layer, in the portable form of each format.
#pragma once

#include <array>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "base/float16.h"
#include "checkpoint/checkpoint.h"
#include "io/safetensors.h"

namespace h3s::checkpoint {

// One layer being quantised. encode_row() may be called for different rows from different threads; companions
// are complete when every row has been encoded. Memory: the companions.
class LayerEncoder {
 public:
  // `largest` is the largest magnitude of the whole matrix, where needs_largest(format). `rotate_group` as in
  // quantize_int8.h, for the ConvRot formats. Finite weights only.
  // With `full_precision` the tag asks for full_precision_matrix_mult. The companions' bytes come from
  // `memory`, which outlives the encoder.
  LayerEncoder(WeightFormat format, std::int64_t n, std::int64_t k, std::int64_t rotate_group, float largest,
               bool full_precision = false,
               std::pmr::memory_resource* memory = std::pmr::get_default_resource());

  // From now on codes are drawn (draw.h), the first row to encode being row `first_row` of the layer whose
  // seed this is.
  void draw_codes(std::uint32_t seed, std::int64_t first_row);
  // asym_w4a8_int8: in place of the fixed ones; ascending.
  void use_levels(const std::array<float, 16>& levels);

  // True when the scale of the whole matrix has to be known before the first row.
  static bool needs_largest(WeightFormat format);

  // LAYER.weight, its companions and LAYER.comfy_quant, in the order they are written.
  std::vector<io::TensorDecl> tensors(const std::string& layer) const;
  std::int64_t n() const { return n_; }
  std::int64_t k() const { return k_; }
  std::int64_t rotate_group() const { return rotate_group_; }
  // n, padded where the format pads; those are zero.
  std::int64_t stored_rows() const { return stored_rows_; }
  std::int64_t row_bytes() const { return row_bytes_; }  // of a row of the stored weight
  const std::string& tag() const { return tag_; }
  float tensor_scale() const { return tensor_scale_; }  // fp8, nvfp4: of the whole matrix

  // row [k]; `out` [row_bytes()] starts as zeros; `scratch` [k].
  void encode_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out, std::span<float> scratch);

  struct Companion {
    std::string suffix;
    DType dtype;
    std::vector<std::int64_t> shape;
    std::pmr::vector<std::byte> bytes;
  };
  const std::vector<Companion>& companions() const { return companions_; }

 private:
  using EncodeRow = void (LayerEncoder::*)(std::int64_t, std::span<const BF16>, std::byte*, std::span<float>);

  void choose(float largest);
  void add(const char* suffix, DType dtype, std::vector<std::int64_t> shape);
  bool draws() const { return draw_seed_ != 0; }
  std::uint64_t element(std::int64_t row_idx) const {
    return static_cast<std::uint64_t>((drawn_row_ + row_idx) * k_);
  }
  template <typename F>
  float rounded(float x, std::uint64_t idx) const;
  void set_float(std::size_t companion, std::int64_t idx, float value);
  void set_byte(std::size_t companion, std::int64_t idx, std::uint8_t value);
  void int8_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out, std::span<float> scratch);
  template <typename F>
  void float8_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out, std::span<float> scratch);
  template <typename Encode>
  void blocks_row(std::int64_t row_idx, std::span<const BF16> row, std::span<float> scratch,
                  std::int64_t size, Encode encode);
  void mxfp8_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out, std::span<float> scratch);
  void nvfp4_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out, std::span<float> scratch);
  void w4a8_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out, std::span<float> scratch);
  void w4a4_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out, std::span<float> scratch);

  std::pmr::memory_resource* memory_;
  WeightFormat format_;
  std::int64_t n_, k_, rotate_group_;
  std::int64_t stored_rows_ = 0, row_bytes_ = 0;
  float tensor_scale_ = 0;
  std::uint32_t draw_seed_ = 0;  // 0: nearest codes
  std::int64_t drawn_row_ = 0;
  std::array<float, 16> levels_{};
  std::string tag_;
  EncodeRow encode_ = nullptr;
  std::vector<Companion> companions_;
};

}  // namespace h3s::checkpoint
