// Exact attention: any queries against all keys of any heads, non-causal, no mask, head width 128.
//
// Per query, over tiles of keys in ascending order from key 0, state m = -inf, l = 0, o = 0:
//   t_j = f(f(q . k_j) * f(scale * log2 e));  m' = max(m, max t_j);  a = exp2(m - m');  p_j = exp2(t_j - m')
//   l = a l + sum p_j;   o = a o + sum round(p_j) v_j;   m = m'
// and at the end O = round(o / l), LSE = (m + log2 l) * ln 2. Tile width and order are fixed by the kernel,
// nothing looks at a neighbouring query, so a query's result depends on that query alone: any split of
// queries or heads over calls gives the same bits.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace h3s::kernels {

struct AttentionArgs {
  const void* q = nullptr;  // [heads][q_tokens][128], strides below in elements
  const void* k = nullptr;  // [heads][kv_tokens][128]
  const void* v = nullptr;  // [heads][kv_tokens][128]
  void* o = nullptr;        // [q_tokens][heads][128] by strides
  float* lse = nullptr;     // [heads][q_tokens] dense, natural logarithm; may be null
  DType dtype = DType::kBF16;
  std::int64_t heads = 0, q_tokens = 0, kv_tokens = 0;
  std::int64_t q_head_stride = 0, q_token_stride = 0;
  std::int64_t k_head_stride = 0, k_token_stride = 0;
  std::int64_t v_head_stride = 0, v_token_stride = 0;
  std::int64_t o_head_stride = 0, o_token_stride = 0;
  float scale = 0;  // 1 / sqrt(128)
};

}  // namespace h3s::kernels
