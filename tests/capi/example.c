/* The C ABI in one page: attention of one query over three keys on the CPU. Prints "0.0 1.0".
 *
 *   cc -std=c11 example.c $(pkg-config --cflags --libs h3stream) && ./a.out */
#include <h3stream/h3stream.h>
#include <stdio.h>

enum { kKeys = 3, kWidth = 128 };

int main(void) {
  h3s_context_params where;
  h3s_context_params_init(&where, sizeof where);
  where.device = "cpu";
  h3s_context* context = NULL;
  if (h3s_context_create(&where, &context) != H3S_OK) {
    fprintf(stderr, "%s\n", h3s_last_error(NULL));
    return 1;
  }

  /* The query looks along the axis of key 1, whose value is 1 in column 1: the softmax is one-hot there. */
  static float q[kWidth], k[kKeys][kWidth], v[kKeys][kWidth], o[kWidth];
  for (int i = 0; i < kKeys; ++i) k[i][i] = v[i][i] = 1.0f;
  q[1] = 2000.0f;

  h3s_attention_params attention;
  h3s_attention_params_init(&attention, sizeof attention);
  attention.dtype = H3S_F32;
  attention.q = q, attention.k = k, attention.v = v, attention.o = o;
  attention.heads = attention.q_tokens = 1, attention.kv_tokens = kKeys;
  attention.q_token_stride = attention.k_token_stride = kWidth;
  attention.v_token_stride = attention.o_token_stride = kWidth;
  const h3s_status status = h3s_attention(context, &attention);
  if (status == H3S_OK)
    printf("%.1f %.1f\n", (double)o[0], (double)o[1]);
  else
    fprintf(stderr, "%s: %s\n", h3s_status_name(status), h3s_last_error(context));
  h3s_context_destroy(context);
  return status != H3S_OK;
}
