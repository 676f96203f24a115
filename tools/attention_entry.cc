// The attention launchers behind plain C, for tools/attention_device_check.py.
#include <cstdint>
#include <cstdio>
#include <exception>

#include "backend/cuda/attention.h"

namespace {

thread_local char last_error[512];

}  // namespace

extern "C" {

// Mirrored field by field in attention_device_check.py.
struct AttentionCall {
  const void *q, *k, *v;
  void* o;
  float* lse;
  std::int64_t heads, q_tokens, kv_tokens;
  std::int64_t q_head_stride, q_token_stride, k_head_stride, k_token_stride;
  std::int64_t v_head_stride, v_token_stride, o_head_stride, o_token_stride;
  float scale;
  std::int32_t is_bf16;
  std::int32_t kernel;  // 0 sm90, 1 mma, 2 mma with the shape below, 3 the device's own
  std::int32_t warps, stages;
};

__attribute__((visibility("default"))) int attention_call(const AttentionCall* c, void* stream) {
  h3s::kernels::AttentionArgs args;
  args.q = c->q;
  args.k = c->k;
  args.v = c->v;
  args.o = c->o;
  args.lse = c->lse;
  args.heads = c->heads;
  args.q_tokens = c->q_tokens;
  args.kv_tokens = c->kv_tokens;
  args.q_head_stride = c->q_head_stride;
  args.q_token_stride = c->q_token_stride;
  args.k_head_stride = c->k_head_stride;
  args.k_token_stride = c->k_token_stride;
  args.v_head_stride = c->v_head_stride;
  args.v_token_stride = c->v_token_stride;
  args.o_head_stride = c->o_head_stride;
  args.o_token_stride = c->o_token_stride;
  args.scale = c->scale;
  args.dtype = c->is_bf16 ? h3s::DType::kBF16 : h3s::DType::kF16;
  const auto queue = static_cast<cudaStream_t>(stream);
  try {
    switch (c->kernel) {
#ifndef H3S_NO_SM90
      case 0:
        h3s::cuda::attention_sm90(args, queue);
        break;
      case 3:
        h3s::cuda::attention(args, queue);
        break;
#endif
      case 1:
        h3s::cuda::attention_mma(args, queue);
        break;
      case 2:
        h3s::cuda::attention_mma(args, {c->warps, c->stages}, queue);
        break;
      default:
        std::snprintf(last_error, sizeof(last_error), "no kernel %d in this library", c->kernel);
        return 1;
    }
  } catch (const std::exception& e) {
    std::snprintf(last_error, sizeof(last_error), "%s", e.what());
    return 1;
  }
  return 0;
}

__attribute__((visibility("default"))) const char* attention_last_error() {
  return last_error;
}

}  // extern "C"
