// The ops on a context: params become the argument structs of kernels/, ops/ checks them.
#include "ops/ops.h"

#include <cmath>

#include "capi/context.h"
#include "capi/params.h"
#include "kernels/row_ops.h"

namespace h3s::capi {
namespace {

DType dtype_of(const char* op, const char* what, std::int32_t dtype) {
  switch (dtype) {
    case H3S_F32:
      return DType::kF32;
    case H3S_BF16:
      return DType::kBF16;
    case H3S_F16:
      return DType::kF16;
    default:
      fail(Status::kInvalidArgument, "[{}] {} must be 0 (f32), 1 (bf16) or 2 (f16), got {}", op, what, dtype);
  }
}

std::int64_t stride_or(std::int64_t stride, std::int64_t dense) {
  return stride == 0 ? dense : stride;
}

// Sizes alone; every other default is zero.
template <typename T>
T defaults() {
  T params{};
  params.size = sizeof(T);
  return params;
}

template <>
h3s_attention_params defaults() {
  h3s_attention_params params{};
  params.size = sizeof(params);
  params.dtype = H3S_BF16;
  params.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kernels::kHeadDim)));
  return params;
}

template <typename T>
h3s_status init(const char* name, T* params, std::size_t size) noexcept {
  return guarded(nullptr, [&] { init_params(name, params, size, defaults<T>()); });
}

// Reads params, converts them and runs the op.
template <typename T, typename Args>
h3s_status run(const char* name, h3s_context* context, const T* params, Args (*convert)(const T&),
               void (*op)(kernels::Backend&, const Args&)) noexcept {
  return guarded(context, [&] {
    if (context == nullptr) fail(Status::kInvalidArgument, "[{}] context must not be null", name);
    op(*context->backend, convert(read_params(name, params, defaults<T>())));
  });
}

kernels::AttentionArgs attention_args(const h3s_attention_params& p) {
  return {.q = p.q,
          .k = p.k,
          .v = p.v,
          .o = p.o,
          .lse = p.lse,
          .dtype = dtype_of("attention", "dtype", p.dtype),
          .heads = p.heads,
          .q_tokens = p.q_tokens,
          .kv_tokens = p.kv_tokens,
          .q_head_stride = p.q_head_stride,
          .q_token_stride = p.q_token_stride,
          .k_head_stride = p.k_head_stride,
          .k_token_stride = p.k_token_stride,
          .v_head_stride = p.v_head_stride,
          .v_token_stride = p.v_token_stride,
          .o_head_stride = p.o_head_stride,
          .o_token_stride = p.o_token_stride,
          .scale = p.scale};
}

kernels::LinearArgs linear_args(const h3s_linear_params& p) {
  return {.x = p.x,
          .x_dtype = dtype_of("linear", "x_dtype", p.x_dtype),
          .x_stride = stride_or(p.x_stride, p.k),
          .w = p.w,
          .w_dtype = dtype_of("linear", "w_dtype", p.w_dtype),
          .bias = p.bias,
          .y = p.y,
          .y_dtype = dtype_of("linear", "y_dtype", p.y_dtype),
          .y_stride = stride_or(p.y_stride, p.n),
          .m = p.m,
          .n = p.n,
          .k = p.k};
}

kernels::LinearInt8Args linear_int8_args(const h3s_linear_int8_params& p) {
  return {.x = p.x,
          .x_scale = p.x_scale,
          .w = p.w,
          .w_scale = p.w_scale,
          .bias = p.bias,
          .y = p.y,
          .y_dtype = dtype_of("linear_int8", "y_dtype", p.y_dtype),
          .y_stride = stride_or(p.y_stride, p.n),
          .m = p.m,
          .n = p.n,
          .k = p.k};
}

kernels::QuantizeRowsArgs quantize_rows_args(const h3s_quantize_rows_params& p) {
  return {.x = p.x,
          .x_dtype = dtype_of("quantize_rows", "dtype", p.dtype),
          .x_stride = stride_or(p.x_stride, p.k),
          .rotate_group = p.rotate_group,
          .codes = p.codes,
          .scale = p.scale,
          .m = p.m,
          .k = p.k};
}

kernels::SwigluQuantizeRowsArgs swiglu_quantize_rows_args(const h3s_swiglu_quantize_rows_params& p) {
  return {.gate_up = p.gate_up,
          .dtype = dtype_of("swiglu_quantize_rows", "dtype", p.dtype),
          .rotate_group = p.rotate_group,
          .codes = p.codes,
          .scale = p.scale,
          .m = p.m,
          .k = p.k};
}

kernels::RmsNormArgs rms_norm_args(const h3s_rms_norm_params& p) {
  return {.x = p.x,
          .x_stride = stride_or(p.x_stride, p.c),
          .weight = p.weight,
          .y = p.y,
          .dtype = dtype_of("rms_norm", "dtype", p.dtype),
          .m = p.m,
          .c = p.c};
}

kernels::SwigluArgs swiglu_args(const h3s_swiglu_params& p) {
  return {.gate_up = p.gate_up, .y = p.y, .dtype = dtype_of("swiglu", "dtype", p.dtype), .m = p.m, .f = p.f};
}

}  // namespace
}  // namespace h3s::capi

using namespace h3s::capi;

// One op, two functions: h3s_<op>_params_init and h3s_<op>.
#define H3S_CAPI_OP(op)                                                        \
  h3s_status h3s_##op##_params_init(h3s_##op##_params* params, size_t size) {  \
    return init("h3s_" #op "_params", params, size);                           \
  }                                                                            \
  h3s_status h3s_##op(h3s_context* context, const h3s_##op##_params* params) { \
    return run("h3s_" #op, context, params, op##_args, h3s::ops::op);          \
  }

H3S_CAPI_OP(attention)
H3S_CAPI_OP(linear)
H3S_CAPI_OP(linear_int8)
H3S_CAPI_OP(quantize_rows)
H3S_CAPI_OP(swiglu_quantize_rows)
H3S_CAPI_OP(rms_norm)
H3S_CAPI_OP(swiglu)
