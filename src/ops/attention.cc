#include "kernels/attention.h"

#include <cmath>

#include "kernels/row_ops.h"
#include "ops/check.h"
#include "ops/ops.h"

namespace h3s::ops {

void attention(kernels::Backend& backend, const kernels::AttentionArgs& args) {
  constexpr const char* kOp = "attention";
  check_dtype(kOp, "dtype", args.dtype, {DType::kF32, DType::kBF16, DType::kF16});
  check_positive(kOp, "heads", args.heads);
  check_positive(kOp, "q_tokens", args.q_tokens);
  check_positive(kOp, "kv_tokens", args.kv_tokens);
  check_stride(kOp, "q_token_stride", args.q_token_stride, kernels::kHeadDim);
  check_stride(kOp, "k_token_stride", args.k_token_stride, kernels::kHeadDim);
  check_stride(kOp, "v_token_stride", args.v_token_stride, kernels::kHeadDim);
  check_stride(kOp, "o_token_stride", args.o_token_stride, kernels::kHeadDim);
  check_pointer(kOp, "q", args.q);
  check_pointer(kOp, "k", args.k);
  check_pointer(kOp, "v", args.v);
  check_pointer(kOp, "o", args.o);
  if (!(args.scale > 0) || !std::isfinite(args.scale))
    fail(Status::kInvalidArgument, "[{}] scale must be positive and finite, got {}", kOp, args.scale);
  backend.attention(args);
}

}  // namespace h3s::ops
