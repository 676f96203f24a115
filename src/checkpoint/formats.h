// The weight formats of H3 files: one row each; a function that checks and binds a layer stored in it, and
// functions that decode its rows.
//
// To add a format: a file format_NAME.cc with its functions, and its row in formats.cc.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/float16.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/parts.h"
#include "checkpoint/tags.h"
#include "checkpoint/value_checks.h"

namespace h3s::checkpoint {

// A layer about to be bound. All pointers outlive the call.
struct LayerContext {
  const io::SafetensorsReader* file = nullptr;
  const Part* part = nullptr;
  std::string layer;              // full name, prefix included
  const QuantTag* tag = nullptr;  // null: untagged

  // The key of a companion: LAYER.suffix, or its older name in a legacy file.
  std::string key(std::string_view suffix) const;
  const io::TensorInfo* find(std::string_view suffix) const;  // null: not there
  // Throws Error(kBadFile) when it is missing.
  const io::TensorInfo& companion(std::string_view suffix) const;
};

// Checks everything the format promises and fills `source`: all but weight, bias, n and k, which are set, and
// the bias checked. Throws Error(kBadFile / kUnsupported) "FILE: KEY: reason".
using BindLayer = void (*)(const LayerContext& context, LinearSource& source);

// The stored bytes of a bound layer; null where it has no such tensor. Data may be unaligned.
struct StoredLayer {
  StoredLayer(const io::SafetensorsReader& file, const LinearSource& layer);
  const LinearSource& source;
  const std::byte *weight, *scale, *group_scale, *codebook;

  // Element `idx` of an F32 tensor; of a tensor with one element, that one.
  static float scale_at(const io::TensorInfo& info, const std::byte* data, std::int64_t idx);
  float row_scale(std::int64_t row) const { return scale_at(*source.scale, scale, row); }
};

// Decodes row `row`; out holds k elements. Pure and thread-safe.
struct RowCodec {
  // The operand of the quantised product, exactly one of the two: int8 codes, or the numbers of
  // floating-point codes times their block scales, exact in bf16.
  void (*codes)(const StoredLayer& layer, std::int64_t row, std::int8_t* out);
  void (*values)(const StoredLayer& layer, std::int64_t row, BF16* out);
  // The weight itself, every scale applied and unrotated. `type` kF32: unrounded; kBF16: rounded inside
  // where stock's bf16 dequantisation rounds, so that one more rounding gives its weight.
  void (*dequantize)(const StoredLayer& layer, std::int64_t row, DType type, float* out);
};

struct FormatRow {
  const char* name;        // in tags; the plain formats have no tag
  const char* weight;      // dtype and shape of the weight of an [N, K] layer
  const char* companions;  // other tensors of a layer
  const char* note;
  BindLayer bind;  // null: recognised by name and refused
  bool tagged;
  RowCodec rows;
  bool packed;  // two columns a byte
};

// Plain formats first, in the order of WeightFormat.
std::span<const FormatRow> formats();
const FormatRow* find_format(std::string_view name);  // null: unknown
const FormatRow& format_row(WeightFormat format);

// The row of a layer: by tag, else by the weight's dtype. Throws Error(kBadFile / kUnsupported) when there is
// none or it cannot run.
const FormatRow& format_of(const LayerContext& context, const io::TensorInfo& weight);

// format_plain.cc, format_int8_tensorwise.cc, ...
void bind_plain(const LayerContext& context, LinearSource& source);
void bind_int8_tensorwise(const LayerContext& context, LinearSource& source);
void bind_float8(const LayerContext& context, LinearSource& source);
void bind_mxfp8(const LayerContext& context, LinearSource& source);
void bind_nvfp4(const LayerContext& context, LinearSource& source);
void bind_w4a8(const LayerContext& context, LinearSource& source);
void bind_w4a4(const LayerContext& context, LinearSource& source);
extern const RowCodec kInt8Rows, kE4M3Rows, kE5M2Rows, kMxfp8Rows, kNvfp4Rows, kW4A8Rows, kW4A4Rows;

// ---- what bind functions share ----

// "FILE: KEY: reason" for the tensor LAYER.suffix.
[[noreturn]] void refuse_layer(const LayerContext& context, std::string_view suffix, Status status,
                               const std::string& reason);
void require_dtype(const LayerContext& context, std::string_view suffix, const io::TensorInfo& info,
                   DType dtype);
void require_shape(const LayerContext& context, std::string_view suffix, const io::TensorInfo& info,
                   const std::vector<std::int64_t>& shape);
// Quantised weights in a layer the network declares fp32.
void refuse_island(const LayerContext& context);
// The ConvRot group of the tag, or an error: a power of 4 that divides k.
std::int64_t checked_rotate_group(const LayerContext& context, std::int64_t k);
// Throws when a value of a plain tensor is not finite.
void require_finite(const LayerContext& context, std::string_view suffix, const io::TensorInfo& info);
// F32 scales, 1 or n, each one a size (value_checks.h).
const io::TensorInfo& checked_row_scales(const LayerContext& context, std::string_view suffix,
                                         std::int64_t n);
// The one value of an F32 scale, checked likewise; 1 without data.
float scalar_scale(const LayerContext& context, std::string_view suffix);
// input_scale and pre_quant_scale, of the formats whose activations are quantised by the generic path.
float input_scale_or(const LayerContext& context, float absent);
const io::TensorInfo* checked_pre_scale(const LayerContext& context, std::int64_t k);
// Scales of blocks of a weight, swizzled (swizzle.h).
const io::TensorInfo& checked_block_scales(const LayerContext& context, std::int64_t n, std::int64_t columns,
                                           const CodeScales& scales);
// Throws when there is a `problem`.
void refuse_problem(const LayerContext& context, std::string_view suffix, const std::string& problem);

}  // namespace h3s::checkpoint
