#include "kernels/row_ops.h"

#include "ops/check.h"
#include "ops/ops.h"

namespace h3s::ops {
namespace {

void check_compute(const char* op, DType dtype) {
  check_dtype(op, "dtype", dtype, {DType::kF32, DType::kBF16});
}

void check_modulation(const char* op, const kernels::Modulation& modulation, std::int64_t rows) {
  check_pointer(op, "modulation.table", modulation.table);
  check_pointer(op, "modulation.segments", modulation.segments);
  check_positive(op, "modulation.num_segments", modulation.num_segments);
  const std::int64_t first = modulation.segments[0].start;
  const std::int64_t last = modulation.segments[modulation.num_segments - 1].stop;
  if (modulation.token0 < first || modulation.token0 + rows > last)
    fail(Status::kInvalidArgument, "[{}] segments must cover rows [{}, {}), got [{}, {})", op,
         modulation.token0, modulation.token0 + rows, first, last);
}

void check_rows(const char* op, std::int64_t m, std::int64_t c) {
  check_positive(op, "m", m);
  check_positive(op, "c", c);
}

}  // namespace

void rms_norm(kernels::Backend& backend, const kernels::RmsNormArgs& args) {
  constexpr const char* kOp = "rms_norm";
  check_compute(kOp, args.dtype);
  check_rows(kOp, args.m, args.c);
  check_stride(kOp, "x_stride", args.x_stride, args.c);
  check_pointer(kOp, "x", args.x);
  check_pointer(kOp, "weight", args.weight);
  check_pointer(kOp, "y", args.y);
  if (args.modulate) check_modulation(kOp, args.modulation, args.m);
  backend.rms_norm(args);
}

void gated_residual(kernels::Backend& backend, const kernels::GatedResidualArgs& args) {
  constexpr const char* kOp = "gated_residual";
  check_compute(kOp, args.dtype);
  check_rows(kOp, args.m, args.c);
  check_pointer(kOp, "x", args.x);
  check_pointer(kOp, "o", args.o);
  if (args.modulate) check_modulation(kOp, args.modulation, args.m);
  backend.gated_residual(args);
}

void swiglu(kernels::Backend& backend, const kernels::SwigluArgs& args) {
  constexpr const char* kOp = "swiglu";
  check_compute(kOp, args.dtype);
  check_rows(kOp, args.m, args.f);
  check_pointer(kOp, "gate_up", args.gate_up);
  check_pointer(kOp, "y", args.y);
  backend.swiglu(args);
}

void silu(kernels::Backend& backend, const kernels::SiluArgs& args) {
  constexpr const char* kOp = "silu";
  check_compute(kOp, args.dtype);
  check_positive(kOp, "count", args.count);
  check_pointer(kOp, "x", args.x);
  check_pointer(kOp, "y", args.y);
  backend.silu(args);
}

void modulation_table(kernels::Backend& backend, const kernels::ModulationTableArgs& args) {
  constexpr const char* kOp = "modulation_table";
  check_compute(kOp, args.dtype);
  check_dtype(kOp, "adaln dtype", args.adaln_dtype, {DType::kF32, DType::kBF16});
  check_rows(kOp, args.rows, args.c);
  check_pointer(kOp, "adaln", args.adaln);
  check_pointer(kOp, "table", args.table);
  backend.modulation_table(args);
}

void final_modulate(kernels::Backend& backend, const kernels::FinalModulateArgs& args) {
  constexpr const char* kOp = "final_modulate";
  check_compute(kOp, args.dtype);
  check_rows(kOp, args.m, args.c);
  check_pointer(kOp, "x", args.x);
  check_pointer(kOp, "weight", args.weight);
  check_pointer(kOp, "scale", args.scale);
  check_pointer(kOp, "shift", args.shift);
  check_pointer(kOp, "y", args.y);
  backend.final_modulate(args);
}

void rope_table(kernels::Backend& backend, const kernels::RopeTableArgs& args) {
  constexpr const char* kOp = "rope_table";
  check_compute(kOp, args.dtype);
  check_positive(kOp, "m", args.m);
  check_pointer(kOp, "positions", args.positions);
  check_pointer(kOp, "inv_freq", args.inv_freq);
  check_pointer(kOp, "table", args.table);
  backend.rope_table(args);
}

void qkv_norm_rope(kernels::Backend& backend, const kernels::QkvArgs& args) {
  constexpr const char* kOp = "qkv_norm_rope";
  check_compute(kOp, args.dtype);
  check_positive(kOp, "m", args.m);
  check_positive(kOp, "heads", args.heads);
  check_stride(kOp, "src_stride", args.src_stride, args.heads * kernels::kHeadDim);
  for (const kernels::QkvArgs::Part* part : {&args.q, &args.k, &args.v}) {
    if (part->src == nullptr) continue;
    check_pointer(kOp, "dst", part->dst);
    if (args.heads > 1)
      check_stride(kOp, "dst_head_stride", part->dst_head_stride, args.m * kernels::kHeadDim);
  }
  if (args.q.src != nullptr) check_pointer(kOp, "q_weight", args.q_weight);
  if (args.k.src != nullptr) check_pointer(kOp, "k_weight", args.k_weight);
  backend.qkv_norm_rope(args);
}

}  // namespace h3s::ops
