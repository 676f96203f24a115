#include "checkpoint/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/block_scale.h"
#include "base/error.h"
#include "base/float8.h"
#include "base/magnitude.h"
#include "checkpoint/draw.h"
#include "checkpoint/formats.h"
#include "checkpoint/quantize_int8.h"
#include "checkpoint/quantize_w4a8.h"
#include "checkpoint/swizzle.h"
#include "io/safetensors_header.h"

namespace h3s::checkpoint {
namespace {

constexpr std::int64_t kMxBlock = 32, kNvfp4Block = 16;
constexpr float kSmallestInt4Peak = 1e-10f;

void widen(std::span<const BF16> row, std::span<float> out) {
  for (std::size_t i = 0; i < row.size(); ++i) out[i] = to_float(row[i]);
}

// Rotated in float, every value rounded to bf16 once.
void widen_rotated(std::span<const BF16> row, std::int64_t group, std::span<float> out) {
  widen(row, out);
  rotate_row(out, group);
  for (float& v : out) v = round_to<BF16>(v);
}

// Two columns a byte, the even one in the low half.
void pack_low_first(std::span<const std::int8_t> codes, std::byte* out) {
  for (std::size_t i = 0; i < codes.size(); i += 2)
    out[i / 2] = static_cast<std::byte>((codes[i] & 0xF) | (codes[i + 1] & 0xF) << 4);
}

std::string int8_tag(std::int64_t group) {
  if (group == 0) return R"({"format": "int8_tensorwise", "convrot": false})";
  return fmt::format(R"({{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": {}}})", group);
}

// The columns that must come together.
void check_width(WeightFormat format, std::int64_t k, std::int64_t rotate_group) {
  const std::int64_t multiple = format == WeightFormat::kConvrotW4A4 ? 64
                                : format == WeightFormat::kAsymW4A8  ? 16
                                                                     : 1;
  if (k % multiple != 0 || (multiple > 1 && rotate_group == 0))
    fail(Status::kInvalidArgument, "[encode] {} needs a multiple of {} columns and a rotation, got {}",
         weight_format_name(format), multiple, k);
}

}  // namespace

LayerEncoder::LayerEncoder(WeightFormat format, std::int64_t n, std::int64_t k, std::int64_t rotate_group,
                           float largest, bool full_precision, std::pmr::memory_resource* memory)
    : memory_(memory),
      format_(format),
      n_(n),
      k_(k),
      rotate_group_(rotate_group),
      stored_rows_(n),
      row_bytes_(k) {
  check_width(format, k, rotate_group);
  choose(largest);
  if (full_precision) tag_.insert(tag_.size() - 1, R"(, "full_precision_matrix_mult": true)");
}

// What the format alone decides: how rows are encoded, sizes, companions and tag.
void LayerEncoder::choose(float largest) {
  const std::int64_t n = n_, k = k_, rotate_group = rotate_group_;
  const auto block_scales = [&](DType dtype, std::int64_t columns) {
    add("weight_scale", dtype, {round_up(n, kScaleTileRows), round_up(columns, kScaleTileColumns)});
  };
  tag_ = fmt::format(R"({{"format": "{}"}})", weight_format_name(format_));
  switch (format_) {
    case WeightFormat::kInt8Tensorwise:
      encode_ = &LayerEncoder::int8_row;
      add("weight_scale", DType::kF32, {n, 1});
      tag_ = int8_tag(rotate_group);
      return;
    case WeightFormat::kFloat8E4M3:
    case WeightFormat::kFloat8E5M2: {
      const bool e4m3 = format_ == WeightFormat::kFloat8E4M3;
      encode_ = e4m3 ? &LayerEncoder::float8_row<E4M3> : &LayerEncoder::float8_row<E5M2>;
      tensor_scale_ = largest / (e4m3 ? E4M3::kLargest : E5M2::kLargest);
      add("weight_scale", DType::kF32, {});
      set_float(0, 0, tensor_scale_);
      return;
    }
    case WeightFormat::kMxfp8:
      encode_ = &LayerEncoder::mxfp8_row;
      stored_rows_ = round_up(n, kMxBlock);
      row_bytes_ = round_up(k, kMxBlock);
      block_scales(DType::kF8E8M0, row_bytes_ / kMxBlock);
      return;
    case WeightFormat::kNvfp4:
      encode_ = &LayerEncoder::nvfp4_row;
      stored_rows_ = round_up(n, kNvfp4Block);
      row_bytes_ = round_up(k, kNvfp4Block) / 2;
      tensor_scale_ = round_to<BF16>(largest / (E4M3::kLargest * E2M1::kLargest));
      block_scales(DType::kF8E4M3, round_up(k, kNvfp4Block) / kNvfp4Block);
      add("weight_scale_2", DType::kF32, {});
      set_float(1, 0, tensor_scale_);
      return;
    case WeightFormat::kAsymW4A8:
      encode_ = &LayerEncoder::w4a8_row;
      row_bytes_ = k / 2;
      add("weight_s_rel", DType::kF8E4M3, {n, k / kW4A8Group});
      add("weight_s_channel", DType::kF32, {n});
      add("weight_codebook", DType::kF32, {std::ssize(kW4A8Codebook)});
      use_levels(kW4A8Codebook);
      tag_ = fmt::format(R"({{"format": "asym_w4a8_int8", "group_size": {}, "convrot_groupsize": {}}})",
                         kW4A8Group, rotate_group);
      return;
    case WeightFormat::kConvrotW4A4:
      encode_ = &LayerEncoder::w4a4_row;
      row_bytes_ = k / 2;
      add("weight_scale", DType::kF32, {n});
      tag_ = fmt::format(R"({{"format": "convrot_w4a4", "convrot_groupsize": {}}})", rotate_group);
      return;
    default:
      fail(Status::kInvalidArgument, "[encode] expected a quantised weight format, got {}",
           weight_format_name(format_));
  }
}

void LayerEncoder::draw_codes(std::uint32_t seed, std::int64_t first_row) {
  draw_seed_ = seed;
  drawn_row_ = first_row;
}

void LayerEncoder::use_levels(const std::array<float, 16>& levels) {
  H3S_ASSERT(format_ == WeightFormat::kAsymW4A8);
  levels_ = levels;
  for (std::size_t i = 0; i < levels.size(); ++i) set_float(2, static_cast<std::int64_t>(i), levels[i]);
}

// To a number of F: the nearest, or the one drawn for the element.
template <typename F>
float LayerEncoder::rounded(float x, std::uint64_t idx) const {
  return draws() ? drawn_small<F>(x, draw(draw_seed_, idx)) : round_small<F>(x);
}

bool LayerEncoder::needs_largest(WeightFormat format) {
  return format == WeightFormat::kFloat8E4M3 || format == WeightFormat::kFloat8E5M2 ||
         format == WeightFormat::kNvfp4;
}

std::vector<io::TensorDecl> LayerEncoder::tensors(const std::string& layer) const {
  DType dtype = DType::kI8;
  if (format_ == WeightFormat::kFloat8E4M3 || format_ == WeightFormat::kMxfp8) dtype = DType::kF8E4M3;
  if (format_ == WeightFormat::kFloat8E5M2) dtype = DType::kF8E5M2;
  if (format_ == WeightFormat::kNvfp4) dtype = DType::kU8;
  std::vector<io::TensorDecl> out{{layer + ".weight", dtype, {stored_rows_, row_bytes_}}};
  for (const Companion& c : companions_) out.push_back({layer + "." + c.suffix, c.dtype, c.shape});
  out.push_back({layer + kTagSuffix, DType::kU8, {std::ssize(tag_)}});
  return out;
}

void LayerEncoder::encode_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out,
                              std::span<float> scratch) {
  H3S_ASSERT(std::ssize(row) == k_ && std::ssize(scratch) >= k_ && row_idx < n_);
  (this->*encode_)(row_idx, row, out, scratch.first(row.size()));
}

void LayerEncoder::add(const char* suffix, DType dtype, std::vector<std::int64_t> shape) {
  const std::uint64_t bytes = io::tensor_bytes(dtype, shape).value();
  companions_.push_back({suffix, dtype, std::move(shape), std::pmr::vector<std::byte>(bytes, memory_)});
}

void LayerEncoder::set_float(std::size_t companion, std::int64_t idx, float value) {
  std::memcpy(companions_[companion].bytes.data() + idx * std::int64_t{sizeof value}, &value, sizeof value);
}

void LayerEncoder::set_byte(std::size_t companion, std::int64_t idx, std::uint8_t value) {
  companions_[companion].bytes[static_cast<std::size_t>(idx)] = std::byte{value};
}

void LayerEncoder::int8_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out,
                            std::span<float> scratch) {
  auto* codes = reinterpret_cast<std::int8_t*>(out);
  set_float(
      0, row_idx,
      quantize_int8_row(row, rotate_group_, {codes, row.size()}, scratch, draw_seed_, element(row_idx)));
}

// Multiplied by the bf16 reciprocal of the scale, rounded to bf16 before the code.
template <typename F>
void LayerEncoder::float8_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out,
                              std::span<float>) {
  const float inverse = tensor_scale_ > 0 ? round_to<BF16>(1.0f / tensor_scale_) : 0.0f;
  for (std::size_t i = 0; i < row.size(); ++i)
    out[i] = std::byte{
        small_code<F>(rounded<F>(round_to<BF16>(to_float(row[i]) * inverse), element(row_idx) + i))};
}

// The row block by block; encode(first column, values, largest magnitude) writes a block's codes and returns
// the code of its scale.
template <typename Encode>
void LayerEncoder::blocks_row(std::int64_t row_idx, std::span<const BF16> row, std::span<float> scratch,
                              std::int64_t size, Encode encode) {
  widen(row, scratch);
  const std::int64_t columns = companions_[0].shape[1];
  for (std::int64_t i = 0; i < k_; i += size) {
    const auto first = static_cast<std::size_t>(i);
    const std::span<const float> values =
        scratch.subspan(first, static_cast<std::size_t>(std::min(size, k_ - i)));
    set_byte(0, swizzled_offset(row_idx, i / size, columns),
             encode(first, values, largest_magnitude(values.data(), std::ssize(values))));
  }
}

void LayerEncoder::mxfp8_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out,
                             std::span<float> scratch) {
  blocks_row(
      row_idx, row, scratch, kMxBlock, [&](std::size_t first, std::span<const float> values, float largest) {
        const int e = mx_exponent(largest);
        const float down = std::ldexp(1.0f, -e);
        for (std::size_t i = 0; i < values.size(); ++i)
          out[first + i] =
              std::byte{small_code<E4M3>(rounded<E4M3>(values[i] * down, element(row_idx) + first + i))};
        return static_cast<std::uint8_t>(e + 127);
      });
}

void LayerEncoder::nvfp4_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out,
                             std::span<float> scratch) {
  blocks_row(row_idx, row, scratch, kNvfp4Block,
             [&](std::size_t first, std::span<const float> values, float largest) {
               const float block = nvfp4_block_scale(largest, tensor_scale_), step = tensor_scale_ * block;
               for (std::size_t i = 0; step > 0 && i < values.size(); ++i) {
                 const unsigned code =
                     small_code<E2M1>(rounded<E2M1>(values[i] / step, element(row_idx) + first + i));
                 out[(first + i) / 2] |= static_cast<std::byte>(i % 2 == 0 ? code << 4 : code);
               }
               return small_code<E4M3>(block);
             });
}

void LayerEncoder::w4a8_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out,
                            std::span<float> scratch) {
  widen_rotated(row, rotate_group_, scratch);
  std::vector<std::int8_t> codes(row.size());
  std::vector<std::uint8_t> relative(row.size() / kW4A8Group);
  set_float(1, row_idx, quantize_w4a8_row(scratch, codes, relative, levels_, {draw_seed_, element(row_idx)}));
  for (std::size_t g = 0; g < relative.size(); ++g)
    set_byte(0, row_idx * std::ssize(relative) + static_cast<std::int64_t>(g), relative[g]);
  pack_low_first(codes, out);
}

// Scale and quotient in bf16, the type of the weight.
void LayerEncoder::w4a4_row(std::int64_t row_idx, std::span<const BF16> row, std::byte* out,
                            std::span<float> scratch) {
  widen_rotated(row, rotate_group_, scratch);
  const float peak =
      std::max(largest_magnitude(scratch.data(), std::ssize(scratch)), round_to<BF16>(kSmallestInt4Peak));
  const float scale = round_to<BF16>(peak / 7.0f);
  set_float(0, row_idx, scale);
  std::vector<std::int8_t> codes(row.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float quotient = round_to<BF16>(scratch[i] / scale);
    const float u = draws() ? round_to<BF16>(draw(draw_seed_, element(row_idx) + i)) : 0.0f;
    const float code = draws() ? std::floor(round_to<BF16>(quotient + u)) : std::nearbyint(quotient);
    codes[i] = static_cast<std::int8_t>(std::clamp(code, -7.0f, 7.0f));
  }
  pack_low_first(codes, out);
}

}  // namespace h3s::checkpoint
