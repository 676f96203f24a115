// The weight formats of H3 files: one row each, and one function that checks and binds a layer stored in it.
//
// To add a format: a file format_NAME.cc with its bind function, and its row in formats.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/parts.h"
#include "checkpoint/tags.h"

namespace h3s::checkpoint {

// A layer about to be bound. All pointers outlive the call.
struct LayerContext {
  const io::SafetensorsReader* file = nullptr;
  const Part* part = nullptr;
  std::string layer;              // full name, prefix included
  const QuantTag* tag = nullptr;  // null: untagged

  // A tensor LAYER.suffix; throws Error(kBadFile) when it is missing.
  const io::TensorInfo& companion(std::string_view suffix) const;
};

// Checks everything the format promises and fills `source` (format, scale, rotate_group). Weight, bias, n and
// k are already set, and the bias checked. Throws Error(kBadFile / kUnsupported) "FILE: KEY: reason".
using BindLayer = void (*)(const LayerContext& context, LinearSource& source);

struct FormatRow {
  const char* name;        // in tags; the plain formats have no tag
  const char* weight;      // dtype and shape of the weight of an [N, K] layer
  const char* companions;  // other tensors of a layer
  const char* note;
  BindLayer bind;  // null: recognised by name and refused
  bool tagged;
};

// Plain formats first.
std::span<const FormatRow> formats();
const FormatRow* find_format(std::string_view name);  // null: unknown

// The row of a layer: by tag, else by the weight's dtype. Throws Error(kBadFile / kUnsupported) when there is
// none or it cannot run.
const FormatRow& format_of(const LayerContext& context, const io::TensorInfo& weight);

void bind_plain(const LayerContext& context, LinearSource& source);            // format_plain.cc
void bind_int8_tensorwise(const LayerContext& context, LinearSource& source);  // format_int8_tensorwise.cc

// "FILE: KEY: reason" for the tensor LAYER.suffix.
[[noreturn]] void refuse_layer(const LayerContext& context, std::string_view suffix, Status status,
                               const std::string& reason);

// Why the F32 scale tensor cannot be used: a value that is not finite and above zero. Empty when it can.
// Reads the whole tensor.
std::string scale_problem(const io::SafetensorsReader& file, const io::TensorInfo& scale);

}  // namespace h3s::checkpoint
