// Row ops and quantisers on a GPU, in bytes moved beside a copy on the device, at the widths of the network.
#include <fmt/format.h>

#include "kernels/row_ops.h"
#include "op_case.h"

namespace h3s::bench {
namespace {

using Role = Operand::Role;

constexpr std::int64_t kRows = 16384, kWidth = 5376, kF = 14336, kHeads = 56, kInner = kHeads * 128;
constexpr std::int64_t kRopeBytes = 2 * 2 * kernels::kRopePairs;
constexpr std::int64_t kCopyBytes = std::int64_t{512} << 20;  // ten times the L2 of an H200
constexpr kernels::ModSegment kSegment{0, kRows, 0};

kernels::Modulation modulation(const void* table) {
  return {&kSegment, 1, 0, table, 6 * kWidth};
}

// `bytes` of a row: what the op's header says moves.
OpCase row_case(const std::string& name, std::int64_t width, std::int64_t bytes) {
  return {{"rows", name, fmt::format("rows {} width {}", kRows, width), static_cast<double>(kRows * bytes),
           "GB/s", "device copy", 2.0 * static_cast<double>(kCopyBytes), 0},
          kRows};
}

OpCase rms_norm_case(bool modulate) {
  OpCase c = row_case(modulate ? "rms_norm, modulated" : "rms_norm", kWidth, 4 * kWidth);
  c.operands = {{Role::kInput, 2 * kWidth},
                {Role::kShared, 4 * kWidth, Fill::kF32},
                {Role::kShared, 12 * kWidth},
                {Role::kOutput, 2 * kWidth}};
  c.run = [=](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    backend.rms_norm({p[0], kWidth, static_cast<float*>(p[1]), p[3], DType::kBF16, rows, kWidth, modulate,
                      modulation(p[2]), kWidth, 0});
  };
  return c;
}

OpCase residual_case(bool gate) {
  OpCase c = row_case(gate ? "gated_residual" : "gated_residual, without gate", kWidth, 6 * kWidth);
  c.operands = {{Role::kInOut, 2 * kWidth}, {Role::kInput, 2 * kWidth}, {Role::kShared, 12 * kWidth}};
  c.run = [=](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    backend.gated_residual({p[0], p[1], DType::kBF16, rows, kWidth, gate, modulation(p[2]), 2 * kWidth});
  };
  return c;
}

OpCase final_modulate_case() {
  OpCase c = row_case("final_modulate", kWidth, 6 * kWidth);
  c.operands = {{Role::kInput, 2 * kWidth},
                {Role::kShared, 4 * kWidth, Fill::kF32},
                {Role::kShared, 4 * kWidth, Fill::kF32},
                {Role::kShared, 4 * kWidth, Fill::kF32},
                {Role::kOutput, 4 * kWidth, Fill::kF32}};
  c.run = [](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    backend.final_modulate({p[0], static_cast<float*>(p[1]), static_cast<float*>(p[2]),
                            static_cast<float*>(p[3]), false, static_cast<float*>(p[4]), DType::kBF16, rows,
                            kWidth});
  };
  return c;
}

OpCase silu_case() {
  OpCase c = row_case("silu", kF, 4 * kF);
  c.operands = {{Role::kInput, 2 * kF}, {Role::kOutput, 2 * kF}};
  c.run = [](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    backend.silu({p[0], p[1], DType::kBF16, rows * kF});
  };
  return c;
}

OpCase swiglu_case() {
  OpCase c = row_case("swiglu", kF, 6 * kF);
  c.operands = {{Role::kInput, 4 * kF}, {Role::kOutput, 2 * kF}};
  c.run = [](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    backend.swiglu({p[0], p[1], DType::kBF16, rows, kF});
  };
  return c;
}

OpCase swiglu_quantize_case(std::int64_t group) {
  OpCase c = row_case(group == 0 ? "swiglu_quantize_rows" : "swiglu_quantize_rows, rotated", kF, 5 * kF);
  c.operands = {{Role::kInput, 4 * kF}, {Role::kOutput, kF, Fill::kCodes}, {Role::kOutput, 4, Fill::kF32}};
  c.run = [=](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    backend.swiglu_quantize_rows(
        {p[0], DType::kBF16, group, static_cast<std::int8_t*>(p[1]), static_cast<float*>(p[2]), rows, kF});
  };
  return c;
}

OpCase quantize_case(std::int64_t width, std::int64_t group,
                     kernels::RowCode code = kernels::RowCode::kInt8) {
  const std::string name = code == kernels::RowCode::kInt4 ? "quantize_rows to int4" : "quantize_rows";
  OpCase c = row_case(group == 0 ? name : name + ", rotated", width, 3 * width);
  c.operands = {
      {Role::kInput, 2 * width}, {Role::kOutput, width, Fill::kCodes}, {Role::kOutput, 4, Fill::kF32}};
  c.run = [=](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    backend.quantize_rows({p[0], DType::kBF16, width, group, static_cast<std::int8_t*>(p[1]),
                           static_cast<float*>(p[2]), rows, width, code});
  };
  return c;
}

OpCase quantize_float_case(const char* name, kernels::FloatCode code, float scale) {
  constexpr std::int64_t kWidth = 5376;
  OpCase c = row_case(fmt::format("quantize_float to {}", name), kWidth, 4 * kWidth);
  c.operands = {{Role::kInput, 2 * kWidth}, {Role::kOutput, 2 * kWidth}, {Role::kOutput, 4, Fill::kF32}};
  c.run = [=](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    backend.quantize_float({.x = p[0],
                            .x_stride = kWidth,
                            .code = code,
                            .scale = scale,
                            .y = p[1],
                            .row_scale = static_cast<float*>(p[2]),
                            .m = rows,
                            .k = kWidth});
  };
  return c;
}

OpCase qkv_case(bool rotate) {
  OpCase c = row_case(rotate ? "qkv_norm_rope" : "qkv_norm_rope, without rope", 3 * kInner, 12 * kInner);
  c.operands = {{Role::kInput, 6 * kInner},
                {Role::kShared, 4 * 128, Fill::kF32},
                {Role::kInput, kRopeBytes},
                {Role::kOutput, 2 * 128, Fill::kBf16, 3 * kHeads}};
  c.run = [=](kernels::Backend& backend, const std::vector<void*>& p, std::int64_t rows) {
    kernels::QkvArgs args;
    kernels::QkvArgs::Part* parts[] = {&args.q, &args.k, &args.v};
    for (std::int64_t i = 0; i < 3; ++i)
      *parts[i] = {static_cast<BF16*>(p[0]) + i * kInner, static_cast<BF16*>(p[3]) + i * rows * kInner,
                   rows * 128};
    args.src_stride = 3 * kInner;
    args.q_weight = args.k_weight = static_cast<float*>(p[1]);
    args.rope = rotate ? p[2] : nullptr;
    args.m = rows, args.heads = kHeads;
    backend.qkv_norm_rope(args);
  };
  return c;
}

}  // namespace

void bench_device_rows(Context& context) {
  DeviceMemory memory(context);
  const void* src = memory.make(kCopyBytes, Fill::kBf16, 99);
  void* dst = memory.make(kCopyBytes, Fill::kPoison);
  const std::function<void()> copy = [&] {
    context.backend().copy({dst, kCopyBytes, src, kCopyBytes, kCopyBytes, 1}, kernels::Queue::kCompute);
  };
  for (const OpCase& c : {rms_norm_case(false),
                          rms_norm_case(true),
                          final_modulate_case(),
                          residual_case(true),
                          residual_case(false),
                          qkv_case(true),
                          qkv_case(false),
                          swiglu_case(),
                          silu_case(),
                          quantize_case(5376, 0),
                          quantize_case(5376, 256),
                          quantize_case(7168, 256),
                          quantize_case(14336, 256),
                          swiglu_quantize_case(0),
                          swiglu_quantize_case(256),
                          quantize_case(5376, 256, kernels::RowCode::kInt4),
                          quantize_case(14336, 256, kernels::RowCode::kInt4),
                          quantize_float_case("e4m3", kernels::FloatCode::kE4M3, 0.02f),
                          quantize_float_case("mxfp8", kernels::FloatCode::kMxfp8, 1),
                          quantize_float_case("nvfp4", kernels::FloatCode::kNvfp4, 0.002f)})
    run_case(context, c, copy);
}

}  // namespace h3s::bench
