/* The C ABI from C11, on the CPU: numbers computed here, and every error with its words. */
#include <h3stream/h3stream.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                          \
    }                                                                      \
  } while (0)

static void expect_error(int line, h3s_status got, h3s_status want, const h3s_context* context,
                         const char* words) {
  const char* text = h3s_last_error(context);
  if (got == want && strstr(text, words) != NULL && strchr(text, '\n') == NULL) return;
  fprintf(stderr, "%s:%d: expected \"%s\" with \"%s\", got \"%s\": %s\n", __FILE__, line,
          h3s_status_name(want), words, h3s_status_name(got), text);
  ++failures;
}
#define EXPECT_ERROR(call, status, context, words) expect_error(__LINE__, (call), (status), (context), (words))

static void expect_ok(int line, h3s_status got, const h3s_context* context) {
  if (got == H3S_OK) return;
  fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, line, h3s_status_name(got), h3s_last_error(context));
  ++failures;
}
#define EXPECT_OK(call, context) expect_ok(__LINE__, (call), (context))

/* Multiples of 1/8 in [-2, 2): exact in every type, and so are short sums of their products. */
static float value(int i) {
  return (float)((i * 37 + 11) % 32 - 16) / 8.0f;
}

static float* floats(int count, int seed) {
  float* x = malloc((size_t)count * sizeof *x);
  for (int i = 0; i < count; ++i) x[i] = value(i + seed);
  return x;
}

/* These values have no more than bf16's eight bits. */
static uint16_t* bf16s(const float* x, int count) {
  uint16_t* y = malloc((size_t)count * sizeof *y);
  for (int i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    y[i] = (uint16_t)(bits >> 16);
  }
  return y;
}

static float widen(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Normal numbers and zero. */
static float widen_f16(uint16_t f16) {
  const int exponent = (f16 >> 10 & 31) - 25, fraction = f16 & 1023;
  const float magnitude = exponent == -25 ? 0.0f : ldexpf((float)(1024 + fraction), exponent);
  return f16 >> 15 ? -magnitude : magnitude;
}

static float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

/* ---- context ---- */

static void test_names(void) {
  CHECK(strcmp(h3s_version(), H3S_TEST_VERSION) == 0);
  const char* names[] = {"ok", "invalid argument", "bad file", "unsupported", "over budget", "input/output", "internal"};
  for (int i = 0; i <= H3S_INTERNAL; ++i) CHECK(strcmp(h3s_status_name((h3s_status)i), names[i]) == 0);
  CHECK(strcmp(h3s_status_name((h3s_status)99), "unknown status") == 0);
  CHECK(strcmp(h3s_context_device(NULL), "") == 0 && strcmp(h3s_context_describe(NULL), "") == 0);
  CHECK(strcmp(h3s_context_kernels(NULL), "") == 0);
  h3s_context_destroy(NULL);
}

static h3s_context* make_context(void) {
  h3s_context_params params;
  EXPECT_OK(h3s_context_params_init(&params, sizeof params), NULL);
  CHECK(params.size == sizeof params && strcmp(params.device, "auto") == 0 && params.num_threads == 0);
  CHECK(params.kernels == H3S_KERNELS_FAST && params.use_stream == 0 && params.stream == NULL);
  params.device = "cpu";
  params.num_threads = 2;
  h3s_context* context = NULL;
  EXPECT_OK(h3s_context_create(&params, &context), NULL);
  CHECK(strcmp(h3s_context_device(context), "cpu") == 0 && strcmp(h3s_context_kernels(context), "cpu") == 0);
  CHECK(strncmp(h3s_context_describe(context), "cpu (2 threads, ", 16) == 0);
  CHECK(strcmp(h3s_last_error(context), "") == 0);
  EXPECT_OK(h3s_context_synchronize(context), context);
  return context;
}

static void test_context_errors(void) {
  h3s_context_params params;
  h3s_context* context = (h3s_context*)&params;
  EXPECT_ERROR(h3s_context_params_init(NULL, sizeof params), H3S_INVALID_ARGUMENT, NULL,
               "[h3s_context_params_init] params must not be null");
  EXPECT_ERROR(h3s_context_params_init(&params, 7), H3S_INVALID_ARGUMENT, NULL, "got 7");
  EXPECT_ERROR(h3s_context_params_init(&params, sizeof params + 1), H3S_INVALID_ARGUMENT, NULL, "size must be");
  EXPECT_OK(h3s_context_params_init(&params, sizeof params), NULL);
  EXPECT_ERROR(h3s_context_create(&params, NULL), H3S_INVALID_ARGUMENT, NULL, "context must not be null");
  EXPECT_ERROR(h3s_context_create(NULL, &context), H3S_INVALID_ARGUMENT, NULL, "params must not be null");
  CHECK(context == NULL);
#define REFUSED(field, bad, status, words)                                     \
  do {                                                                         \
    h3s_context_params_init(&params, sizeof params);                           \
    params.device = "cpu";                                                     \
    params.field = (bad);                                                      \
    EXPECT_ERROR(h3s_context_create(&params, &context), status, NULL, words);  \
    CHECK(context == NULL);                                                    \
  } while (0)
  REFUSED(size, 0, H3S_INVALID_ARGUMENT, "h3s_context_params_init");
  REFUSED(size, sizeof params + 8, H3S_INVALID_ARGUMENT, "h3s_context_params_init");
  REFUSED(device, NULL, H3S_INVALID_ARGUMENT, "device must not be null");
  REFUSED(device, "gpu", H3S_INVALID_ARGUMENT, "expected auto, cpu or cuda:N, got \"gpu\"");
  REFUSED(device, "cuda:999", H3S_UNSUPPORTED, "[device] cuda:999");
  REFUSED(num_threads, -1, H3S_INVALID_ARGUMENT, "num_threads must be 0 (all) or more, got -1");
  REFUSED(kernels, 3, H3S_INVALID_ARGUMENT, "kernels must be");
  REFUSED(use_stream, 1, H3S_UNSUPPORTED, "the CPU runs on no stream");
#undef REFUSED
  EXPECT_ERROR(h3s_context_synchronize(NULL), H3S_INVALID_ARGUMENT, NULL, "context must not be null");
}

/* A header that knew only the size: every later field takes its default, and "auto" opens some device. */
static void test_older_header(void) {
  h3s_context_params params;
  memset(&params, 0xFF, sizeof params);
  EXPECT_OK(h3s_context_params_init(&params, sizeof params.size), NULL);
  CHECK(params.size == sizeof params.size && params.num_threads == -1);  /* nothing written past the size */
  h3s_context* context = NULL;
  EXPECT_OK(h3s_context_create(&params, &context), NULL);
  CHECK(strlen(h3s_context_device(context)) >= 3);
  h3s_context_destroy(context);
}

/* ---- ops ---- */

enum { kM = 5, kN = 7, kK = 64, kHeads = 2, kWidth = 128, kQueries = 3, kKeys = 70 };

static void test_linear(h3s_context* context) {
  float *x = floats(kM * kK, 0), *w = floats(kN * kK, 5), *bias = floats(kN, 9), y[kM][kN + 2];
  uint16_t *x16 = bf16s(x, kM * kK), *w16 = bf16s(w, kN * kK), y16[kM][kN], y_f16[kM][kN];
  h3s_linear_params p;
  EXPECT_OK(h3s_linear_params_init(&p, sizeof p), NULL);
  p.x_dtype = p.w_dtype = H3S_BF16, p.y_dtype = H3S_F32;
  p.x = x16, p.w = w16, p.bias = bias, p.y = y;
  p.m = kM, p.n = kN, p.k = kK, p.y_stride = kN + 2;
  memset(y, 0xFF, sizeof y);
  EXPECT_OK(h3s_linear(context, &p), context);
  p.w = w, p.w_dtype = H3S_F32, p.y_dtype = H3S_F16, p.y = y_f16, p.y_stride = 0;
  EXPECT_OK(h3s_linear(context, &p), context);
  p.x = x, p.x_dtype = H3S_F32, p.y = y16, p.y_dtype = H3S_BF16, p.y_stride = 0;
  EXPECT_OK(h3s_linear(context, &p), context);
  for (int i = 0; i < kM; ++i)
    for (int j = 0; j < kN; ++j) {
      float sum = bias[j];  /* exact: multiples of 1/64 below 2^9 */
      for (int k = 0; k < kK; ++k) sum += x[i * kK + k] * w[j * kK + k];
      CHECK(y[i][j] == sum);
      CHECK(fabsf(widen_f16(y_f16[i][j]) - sum) <= fabsf(sum) * 0x1p-11f);
      CHECK(fabsf(widen(y16[i][j]) - sum) <= fabsf(sum) * 0x1p-8f);
      CHECK(isnan(y[i][kN]) && isnan(y[i][kN + 1]));  /* the gap between rows */
    }
  free(x), free(w), free(bias), free(x16), free(w16);
}

static void test_quantized(h3s_context* context) {
  float *x = floats(kM * kK, 3), x_scale[kM], w_scale[kN], y[kM][kN];
  int8_t codes[kM][kK], w[kN][kK];
  h3s_quantize_rows_params q;
  EXPECT_OK(h3s_quantize_rows_params_init(&q, sizeof q), NULL);
  q.dtype = H3S_F32, q.x = x, q.codes = &codes[0][0], q.scale = x_scale, q.m = kM, q.k = kK;
  EXPECT_OK(h3s_quantize_rows(context, &q), context);
  for (int i = 0; i < kM; ++i) {
    float most = 0;
    for (int k = 0; k < kK; ++k) most = fmaxf(most, fabsf(x[i * kK + k]));
    CHECK(x_scale[i] == most * (1.0f / 127.0f));
    /* Half a code, and a scale that is rounded to bf16 before it divides. */
    for (int k = 0; k < kK; ++k)
      CHECK(fabsf((float)codes[i][k] - x[i * kK + k] / x_scale[i]) <= 0.5f + 127 * 0x1p-7f);
  }
  for (int j = 0; j < kN; ++j) {
    w_scale[j] = 0.5f + (float)j;
    for (int k = 0; k < kK; ++k) w[j][k] = (int8_t)((j * 31 + k * 17) % 255 - 127);
  }
  h3s_linear_int8_params p;
  EXPECT_OK(h3s_linear_int8_params_init(&p, sizeof p), NULL);
  p.x = &codes[0][0], p.x_scale = x_scale, p.w = &w[0][0], p.w_scale = w_scale, p.y = y, p.y_dtype = H3S_F32;
  p.m = kM, p.n = kN, p.k = kK;
  EXPECT_OK(h3s_linear_int8(context, &p), context);
  for (int i = 0; i < kM; ++i)
    for (int j = 0; j < kN; ++j) {
      int sum = 0;
      for (int k = 0; k < kK; ++k) sum += codes[i][k] * w[j][k];
      const float scaled = (float)sum * x_scale[i];
      CHECK(y[i][j] == scaled * w_scale[j]);
    }
  free(x);
}

static void test_row_ops(h3s_context* context) {
  float *x = floats(kM * 2 * kK, 1), *weight = floats(kK, 4), y[kM][kK], scale[kM];
  int8_t codes[kM][kK];
  h3s_rms_norm_params norm;
  EXPECT_OK(h3s_rms_norm_params_init(&norm, sizeof norm), NULL);
  norm.dtype = H3S_F32, norm.x = x, norm.x_stride = 2 * kK, norm.weight = weight, norm.y = y, norm.m = kM, norm.c = kK;
  EXPECT_OK(h3s_rms_norm(context, &norm), context);
  for (int i = 0; i < kM; ++i) {
    double squares = 0;
    for (int k = 0; k < kK; ++k) squares += (double)x[i * 2 * kK + k] * (double)x[i * 2 * kK + k];
    for (int k = 0; k < kK; ++k) {
      const double want = (double)x[i * 2 * kK + k] / sqrt(squares / kK + 1e-5) * (double)weight[k];
      CHECK(fabs((double)y[i][k] - want) <= 1e-6 * (1 + fabs(want)));
    }
  }
  h3s_swiglu_params swiglu;
  EXPECT_OK(h3s_swiglu_params_init(&swiglu, sizeof swiglu), NULL);
  swiglu.dtype = H3S_F32, swiglu.gate_up = x, swiglu.y = y, swiglu.m = kM, swiglu.f = kK;
  EXPECT_OK(h3s_swiglu(context, &swiglu), context);
  h3s_swiglu_quantize_rows_params fused;
  EXPECT_OK(h3s_swiglu_quantize_rows_params_init(&fused, sizeof fused), NULL);
  fused.dtype = H3S_F32, fused.gate_up = x, fused.codes = &codes[0][0], fused.scale = scale, fused.m = kM, fused.k = kK;
  EXPECT_OK(h3s_swiglu_quantize_rows(context, &fused), context);
  for (int i = 0; i < kM; ++i)
    for (int k = 0; k < kK; ++k) {
      const float gate = x[i * 2 * kK + k], up = x[i * 2 * kK + kK + k];
      CHECK(fabsf(y[i][k] - gate * sigmoid(gate) * up) <= 1e-5f);
      CHECK(fabsf((float)codes[i][k] * scale[i] - y[i][k]) <= scale[i] * (0.5f + 127 * 0x1p-7f));
    }
  free(x), free(weight);
}

/* Heads side by side in a row of q, k, v and o, as a fused projection leaves them. */
static void attention_params(h3s_attention_params* p, const float* q, const float* k, const float* v, float* o,
                             float* lse) {
  EXPECT_OK(h3s_attention_params_init(p, sizeof *p), NULL);
  CHECK(p->dtype == H3S_BF16 && p->scale == (float)(1 / sqrt(128.0)));
  p->dtype = H3S_F32, p->q = q, p->k = k, p->v = v, p->o = o, p->lse = lse;
  p->heads = kHeads, p->q_tokens = kQueries, p->kv_tokens = kKeys;
  p->q_head_stride = p->k_head_stride = p->v_head_stride = p->o_head_stride = kWidth;
  p->q_token_stride = p->k_token_stride = p->v_token_stride = p->o_token_stride = kHeads * kWidth;
}

static void test_attention(h3s_context* context) {
  const int row = kHeads * kWidth;
  float *q = floats(kQueries * row, 2), *k = floats(kKeys * row, 7), *v = floats(kKeys * row, 13);
  float o[kQueries * kHeads * kWidth], lse[kHeads * kQueries];
  h3s_attention_params p;
  attention_params(&p, q, k, v, o, lse);
  EXPECT_OK(h3s_attention(context, &p), context);
  for (int h = 0; h < kHeads; ++h)
    for (int i = 0; i < kQueries; ++i) {
      double total = 0, want[kWidth] = {0};
      for (int j = 0; j < kKeys; ++j) {
        double score = 0;
        for (int d = 0; d < kWidth; ++d)
          score += (double)q[i * row + h * kWidth + d] * (double)k[j * row + h * kWidth + d];
        const double weight = exp(score / sqrt(128.0));
        total += weight;
        for (int d = 0; d < kWidth; ++d) want[d] += weight * (double)v[j * row + h * kWidth + d];
      }
      CHECK(fabs((double)lse[h * kQueries + i] - log(total)) <= 1e-5 * (1 + fabs(log(total))));
      for (int d = 0; d < kWidth; ++d)
        CHECK(fabs((double)o[i * row + h * kWidth + d] - want[d] / total) <= 2e-5);
    }
  free(q), free(k), free(v);
}

/* ---- errors of the ops: one wrong field at a time ---- */

static void test_attention_errors(h3s_context* context) {
  float x[kKeys * kHeads * kWidth] = {0}, o[kKeys * kHeads * kWidth];
  h3s_attention_params p;
#define REFUSED(field, bad, status, words)                              \
  do {                                                                  \
    attention_params(&p, x, x, x, o, NULL);                             \
    p.field = (bad);                                                    \
    EXPECT_ERROR(h3s_attention(context, &p), status, context, words);   \
  } while (0)
  REFUSED(size, 4, H3S_INVALID_ARGUMENT, "h3s_attention_params_init");
  REFUSED(dtype, 3, H3S_INVALID_ARGUMENT, "[attention] dtype must be 0 (f32), 1 (bf16) or 2 (f16), got 3");
  REFUSED(scale, 0.0f, H3S_INVALID_ARGUMENT, "[attention] scale must be positive");
  REFUSED(scale, INFINITY, H3S_INVALID_ARGUMENT, "[attention] scale must be positive");
  REFUSED(q, NULL, H3S_INVALID_ARGUMENT, "[attention] q must not be null");
  REFUSED(k, NULL, H3S_INVALID_ARGUMENT, "[attention] k must not be null");
  REFUSED(v, NULL, H3S_INVALID_ARGUMENT, "[attention] v must not be null");
  REFUSED(o, NULL, H3S_INVALID_ARGUMENT, "[attention] o must not be null");
  REFUSED(heads, 0, H3S_INVALID_ARGUMENT, "[attention] heads must be at least 1, got 0");
  REFUSED(q_tokens, -1, H3S_INVALID_ARGUMENT, "[attention] q_tokens must be at least 1, got -1");
  REFUSED(kv_tokens, 0, H3S_INVALID_ARGUMENT, "[attention] kv_tokens must be at least 1, got 0");
  REFUSED(q_token_stride, 127, H3S_INVALID_ARGUMENT, "[attention] q_token_stride must be at least the 128");
  REFUSED(k_token_stride, 0, H3S_INVALID_ARGUMENT, "[attention] k_token_stride");
  REFUSED(v_token_stride, 0, H3S_INVALID_ARGUMENT, "[attention] v_token_stride");
  REFUSED(o_token_stride, 0, H3S_INVALID_ARGUMENT, "[attention] o_token_stride");
#undef REFUSED
  EXPECT_ERROR(h3s_attention(context, NULL), H3S_INVALID_ARGUMENT, context, "[h3s_attention] params must not be null");
  attention_params(&p, x, x, x, o, NULL);
  EXPECT_ERROR(h3s_attention(NULL, &p), H3S_INVALID_ARGUMENT, NULL, "[h3s_attention] context must not be null");
  EXPECT_OK(h3s_attention(context, &p), context);  /* a refusal leaves the context usable */
}

static void test_linear_errors(h3s_context* context) {
  static float x[kM * kK], w[kN * kK], y[kM * kN];
  static int8_t x8[kM * kK], w8[kN * kK];
  h3s_linear_params p;
#define REFUSED(field, bad, status, words)                                         \
  do {                                                                             \
    h3s_linear_params_init(&p, sizeof p);                                          \
    p.x = x, p.w = w, p.y = y, p.m = kM, p.n = kN, p.k = kK;                       \
    p.field = (bad);                                                               \
    EXPECT_ERROR(h3s_linear(context, &p), status, context, words);                 \
  } while (0)
  REFUSED(size, 0, H3S_INVALID_ARGUMENT, "h3s_linear_params_init");
  REFUSED(x_dtype, 7, H3S_INVALID_ARGUMENT, "[linear] x_dtype");
  REFUSED(w_dtype, -1, H3S_INVALID_ARGUMENT, "[linear] w_dtype");
  REFUSED(y_dtype, 3, H3S_INVALID_ARGUMENT, "[linear] y_dtype");
  REFUSED(m, 0, H3S_INVALID_ARGUMENT, "[linear] m must be at least 1, got 0");
  REFUSED(n, 0, H3S_INVALID_ARGUMENT, "[linear] n must be at least 1, got 0");
  REFUSED(k, -5, H3S_INVALID_ARGUMENT, "[linear] k must be at least 1, got -5");
  REFUSED(x_stride, kK - 1, H3S_INVALID_ARGUMENT, "[linear] x_stride must be at least the 64 columns");
  REFUSED(y_stride, 1, H3S_INVALID_ARGUMENT, "[linear] y_stride");
  REFUSED(x, NULL, H3S_INVALID_ARGUMENT, "[linear] x must not be null");
  REFUSED(w, NULL, H3S_INVALID_ARGUMENT, "[linear] w must not be null");
  REFUSED(y, NULL, H3S_INVALID_ARGUMENT, "[linear] y must not be null");
#undef REFUSED
  h3s_linear_int8_params i;
#define REFUSED(field, bad, status, words)                                                               \
  do {                                                                                                   \
    h3s_linear_int8_params_init(&i, sizeof i);                                                           \
    i.x = x8, i.x_scale = x, i.w = w8, i.w_scale = w, i.y = y, i.m = kM, i.n = kN, i.k = kK;             \
    i.field = (bad);                                                                                     \
    EXPECT_ERROR(h3s_linear_int8(context, &i), status, context, words);                                  \
  } while (0)
  REFUSED(size, 1, H3S_INVALID_ARGUMENT, "h3s_linear_int8_params_init");
  REFUSED(y_dtype, H3S_F16, H3S_UNSUPPORTED, "[linear_int8] y dtype");
  REFUSED(y_dtype, 9, H3S_INVALID_ARGUMENT, "[linear_int8] y_dtype");
  REFUSED(m, 0, H3S_INVALID_ARGUMENT, "[linear_int8] m");
  REFUSED(n, 0, H3S_INVALID_ARGUMENT, "[linear_int8] n");
  REFUSED(k, 0, H3S_INVALID_ARGUMENT, "[linear_int8] k");
  REFUSED(k, 131072, H3S_INVALID_ARGUMENT, "[linear_int8] k must be at most 131071 for an int32 sum, got 131072");
  REFUSED(y_stride, 2, H3S_INVALID_ARGUMENT, "[linear_int8] y_stride");
  REFUSED(x, NULL, H3S_INVALID_ARGUMENT, "[linear_int8] x must");
  REFUSED(x_scale, NULL, H3S_INVALID_ARGUMENT, "[linear_int8] x_scale");
  REFUSED(w, NULL, H3S_INVALID_ARGUMENT, "[linear_int8] w must");
  REFUSED(w_scale, NULL, H3S_INVALID_ARGUMENT, "[linear_int8] w_scale");
  REFUSED(y, NULL, H3S_INVALID_ARGUMENT, "[linear_int8] y must");
#undef REFUSED
}

static void test_row_errors(h3s_context* context) {
  static float x[kM * 2 * kK], y[kM * kK];
  static int8_t codes[kM * kK];
#define REFUSED(op, set, field, bad, status, words)                                                  \
  do {                                                                                               \
    h3s_##op##_params p;                                                                             \
    h3s_##op##_params_init(&p, sizeof p);                                                            \
    p.m = kM;                                                                                        \
    set;                                                                                             \
    p.field = (bad);                                                                                 \
    EXPECT_ERROR(h3s_##op(context, &p), status, context, words);                                     \
  } while (0)
#define SET_QUANTIZE p.x = x, p.codes = codes, p.scale = y, p.k = kK
  REFUSED(quantize_rows, SET_QUANTIZE, size, 2, H3S_INVALID_ARGUMENT, "h3s_quantize_rows_params_init");
  REFUSED(quantize_rows, SET_QUANTIZE, dtype, 5, H3S_INVALID_ARGUMENT, "[quantize_rows] dtype");
  REFUSED(quantize_rows, SET_QUANTIZE, dtype, H3S_F16, H3S_UNSUPPORTED, "[quantize_rows] x dtype");
  REFUSED(quantize_rows, SET_QUANTIZE, m, 0, H3S_INVALID_ARGUMENT, "[quantize_rows] m");
  REFUSED(quantize_rows, SET_QUANTIZE, k, 0, H3S_INVALID_ARGUMENT, "[quantize_rows] k");
  REFUSED(quantize_rows, SET_QUANTIZE, x_stride, 3, H3S_INVALID_ARGUMENT, "[quantize_rows] x_stride");
  REFUSED(quantize_rows, SET_QUANTIZE, rotate_group, 8, H3S_INVALID_ARGUMENT, "power of 4 that divides k=64, got 8");
  REFUSED(quantize_rows, SET_QUANTIZE, x, NULL, H3S_INVALID_ARGUMENT, "[quantize_rows] x must");
  REFUSED(quantize_rows, SET_QUANTIZE, codes, NULL, H3S_INVALID_ARGUMENT, "[quantize_rows] codes");
  REFUSED(quantize_rows, SET_QUANTIZE, scale, NULL, H3S_INVALID_ARGUMENT, "[quantize_rows] scale");
#define SET_FUSED p.gate_up = x, p.codes = codes, p.scale = y, p.k = kK
  REFUSED(swiglu_quantize_rows, SET_FUSED, size, 2, H3S_INVALID_ARGUMENT, "h3s_swiglu_quantize_rows_params_init");
  REFUSED(swiglu_quantize_rows, SET_FUSED, dtype, 5, H3S_INVALID_ARGUMENT, "[swiglu_quantize_rows] dtype");
  REFUSED(swiglu_quantize_rows, SET_FUSED, dtype, H3S_F16, H3S_UNSUPPORTED, "[swiglu_quantize_rows] dtype");
  REFUSED(swiglu_quantize_rows, SET_FUSED, m, 0, H3S_INVALID_ARGUMENT, "[swiglu_quantize_rows] m");
  REFUSED(swiglu_quantize_rows, SET_FUSED, k, 0, H3S_INVALID_ARGUMENT, "[swiglu_quantize_rows] k");
  REFUSED(swiglu_quantize_rows, SET_FUSED, rotate_group, 256, H3S_INVALID_ARGUMENT, "got 256");
  REFUSED(swiglu_quantize_rows, SET_FUSED, gate_up, NULL, H3S_INVALID_ARGUMENT, "[swiglu_quantize_rows] gate_up");
  REFUSED(swiglu_quantize_rows, SET_FUSED, codes, NULL, H3S_INVALID_ARGUMENT, "[swiglu_quantize_rows] codes");
  REFUSED(swiglu_quantize_rows, SET_FUSED, scale, NULL, H3S_INVALID_ARGUMENT, "[swiglu_quantize_rows] scale");
#define SET_NORM p.x = x, p.weight = x, p.y = y, p.c = kK
  REFUSED(rms_norm, SET_NORM, size, 2, H3S_INVALID_ARGUMENT, "h3s_rms_norm_params_init");
  REFUSED(rms_norm, SET_NORM, dtype, 5, H3S_INVALID_ARGUMENT, "[rms_norm] dtype");
  REFUSED(rms_norm, SET_NORM, dtype, H3S_F16, H3S_UNSUPPORTED, "[rms_norm] dtype");
  REFUSED(rms_norm, SET_NORM, m, 0, H3S_INVALID_ARGUMENT, "[rms_norm] m");
  REFUSED(rms_norm, SET_NORM, c, 0, H3S_INVALID_ARGUMENT, "[rms_norm] c");
  REFUSED(rms_norm, SET_NORM, x_stride, 3, H3S_INVALID_ARGUMENT, "[rms_norm] x_stride");
  REFUSED(rms_norm, SET_NORM, x, NULL, H3S_INVALID_ARGUMENT, "[rms_norm] x must");
  REFUSED(rms_norm, SET_NORM, weight, NULL, H3S_INVALID_ARGUMENT, "[rms_norm] weight");
  REFUSED(rms_norm, SET_NORM, y, NULL, H3S_INVALID_ARGUMENT, "[rms_norm] y must");
#define SET_SWIGLU p.gate_up = x, p.y = y, p.f = kK
  REFUSED(swiglu, SET_SWIGLU, size, 2, H3S_INVALID_ARGUMENT, "h3s_swiglu_params_init");
  REFUSED(swiglu, SET_SWIGLU, dtype, 5, H3S_INVALID_ARGUMENT, "[swiglu] dtype");
  REFUSED(swiglu, SET_SWIGLU, dtype, H3S_F16, H3S_UNSUPPORTED, "[swiglu] dtype");
  REFUSED(swiglu, SET_SWIGLU, m, 0, H3S_INVALID_ARGUMENT, "[swiglu] m");
  REFUSED(swiglu, SET_SWIGLU, f, 0, H3S_INVALID_ARGUMENT, "[swiglu] c must be at least 1");
  REFUSED(swiglu, SET_SWIGLU, gate_up, NULL, H3S_INVALID_ARGUMENT, "[swiglu] gate_up");
  REFUSED(swiglu, SET_SWIGLU, y, NULL, H3S_INVALID_ARGUMENT, "[swiglu] y must");
#undef REFUSED
}

int main(void) {
  test_names();
  test_context_errors();
  test_older_header();
  h3s_context* context = make_context();
  if (context == NULL) return 1;
  test_linear(context);
  test_quantized(context);
  test_row_ops(context);
  test_attention(context);
  test_attention_errors(context);
  test_linear_errors(context);
  test_row_errors(context);
  h3s_context_destroy(context);
  if (failures != 0) fprintf(stderr, "%d failures\n", failures);
  return failures != 0;
}
