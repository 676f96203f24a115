// The linear and quantiser launchers behind plain C, for tools/linear_device_check.py.
#include <cstdint>
#include <cstdio>
#include <exception>

#include "backend/cuda/linear.h"
#include "backend/cuda/quantize.h"

namespace {

thread_local char last_error[512];

h3s::DType dtype(std::int32_t code) {  // 0 f32, 1 bf16, 2 f16
  return code == 0 ? h3s::DType::kF32 : code == 1 ? h3s::DType::kBF16 : h3s::DType::kF16;
}

template <typename Fn>
int guarded(Fn&& fn) {
  try {
    return fn();
  } catch (const std::exception& e) {
    std::snprintf(last_error, sizeof(last_error), "%s", e.what());
    return 1;
  }
}

int no_kernel(int kernel) {
  std::snprintf(last_error, sizeof(last_error), "no kernel %d in this library", kernel);
  return 1;
}

}  // namespace

extern "C" {

// Mirrored field by field in linear_device_check.py.
struct LinearCall {
  const void *x, *w;
  const float *x_scale, *w_scale, *bias;
  void* y;
  std::int64_t m, n, k, x_stride, y_stride;
  std::int32_t x_dtype, w_dtype, y_dtype;
  std::int32_t kernel;  // 0 the device's own, 1 sm90, 2 mma, 3 fma or plain
};

struct QuantizeCall {
  const void* x;
  std::int8_t* codes;
  float* scale;
  std::int64_t m, k, x_stride, group;
  std::int32_t dtype;
  std::int32_t swiglu;
};

__attribute__((visibility("default"))) int linear_call(const LinearCall* c, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  h3s::kernels::LinearArgs args;
  args.x = c->x;
  args.x_dtype = dtype(c->x_dtype);
  args.x_stride = c->x_stride;
  args.w = c->w;
  args.w_dtype = dtype(c->w_dtype);
  args.bias = c->bias;
  args.y = c->y;
  args.y_dtype = dtype(c->y_dtype);
  args.y_stride = c->y_stride;
  args.m = c->m;
  args.n = c->n;
  args.k = c->k;
  return guarded([&] {
    switch (c->kernel) {
      case 0:
        h3s::cuda::linear(args, queue);
        return 0;
      case 1:
        h3s::cuda::linear_sm90(args, queue);
        return 0;
      case 2:
        h3s::cuda::linear_mma(args, queue);
        return 0;
      case 3:
        h3s::cuda::linear_fma(args, queue);
        return 0;
      default:
        return no_kernel(c->kernel);
    }
  });
}

__attribute__((visibility("default"))) int linear_int8_call(const LinearCall* c, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  h3s::kernels::LinearInt8Args args;
  args.x = static_cast<const std::int8_t*>(c->x);
  args.x_scale = c->x_scale;
  args.w = static_cast<const std::int8_t*>(c->w);
  args.w_scale = c->w_scale;
  args.bias = c->bias;
  args.y = c->y;
  args.y_dtype = dtype(c->y_dtype);
  args.y_stride = c->y_stride;
  args.m = c->m;
  args.n = c->n;
  args.k = c->k;
  return guarded([&] {
    switch (c->kernel) {
      case 0:
        h3s::cuda::linear_int8(args, queue);
        return 0;
      case 1:
        h3s::cuda::linear_int8_sm90(args, queue);
        return 0;
      case 2:
        h3s::cuda::linear_int8_mma(args, queue);
        return 0;
      case 3:
        h3s::cuda::linear_int8_plain(args, queue);
        return 0;
      default:
        return no_kernel(c->kernel);
    }
  });
}

__attribute__((visibility("default"))) int quantize_call(const QuantizeCall* c, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  return guarded([&] {
    if (c->swiglu != 0) {
      h3s::kernels::SwigluQuantizeRowsArgs args;
      args.gate_up = c->x;
      args.dtype = dtype(c->dtype);
      args.rotate_group = c->group;
      args.codes = c->codes;
      args.scale = c->scale;
      args.m = c->m;
      args.k = c->k;
      h3s::cuda::swiglu_quantize_rows(args, queue);
    } else {
      h3s::kernels::QuantizeRowsArgs args;
      args.x = c->x;
      args.x_dtype = dtype(c->dtype);
      args.x_stride = c->x_stride;
      args.rotate_group = c->group;
      args.codes = c->codes;
      args.scale = c->scale;
      args.m = c->m;
      args.k = c->k;
      h3s::cuda::quantize_rows(args, queue);
    }
    return 0;
  });
}

__attribute__((visibility("default"))) const char* linear_last_error() {
  return last_error;
}

}  // extern "C"
