/* h3stream as a C library. Clean C11 and C++.
 *
 * Every function that can fail returns an h3s_status, leaves its results in out parameters and never throws.
 * h3s_last_error() has the reason in one line: "[op] what was expected, got what came".
 *
 * Params structs begin with their size. Always call the struct's _init first: it sets the size and the
 * defaults, so that a program built against an older header goes on working with a newer library.
 *
 *   h3s_context_params where;
 *   h3s_context_params_init(&where, sizeof where);
 *   where.device = "cuda:0";
 *   h3s_context* context = NULL;
 *   if (h3s_context_create(&where, &context) != H3S_OK) puts(h3s_last_error(NULL));
 *
 * Pointers in params are the caller's memory, read or written and never kept: on a GPU device memory of the
 * context's device (or pinned host memory), on the CPU ordinary memory. Strides and counts are in elements.
 * Nothing here allocates for an op.
 *
 * A context is used by one thread at a time; contexts do not share anything. */
#ifndef H3STREAM_H
#define H3STREAM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define H3S_API __attribute__((visibility("default")))
#else
#define H3S_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

typedef enum h3s_status {
  H3S_OK = 0,
  H3S_INVALID_ARGUMENT = 1, /* a value is out of range or inconsistent */
  H3S_BAD_FILE = 2,         /* a file breaks its format or lacks something */
  H3S_UNSUPPORTED = 3,      /* well formed, but not something this build or device can run */
  H3S_OVER_BUDGET = 4,      /* more memory would be needed than there is */
  H3S_IO = 5,               /* the operating system refused */
  H3S_INTERNAL = 6          /* a broken invariant, or an error the device reported */
} h3s_status;

typedef struct h3s_context h3s_context;

/* "invalid argument"; static. */
H3S_API const char* h3s_status_name(h3s_status status);

/* Why the last call that was given `context` failed, "" when none has; valid until the next call with it. For
 * NULL: the last call of this thread that had no context to keep the reason, as h3s_context_create. */
H3S_API const char* h3s_last_error(const h3s_context* context);

/* "0.1.0"; static. */
H3S_API const char* h3s_version(void);

/* ---- context: where ops run ---- */

typedef enum h3s_kernels {
  H3S_KERNELS_FAST = 0,     /* the best of the device for each op */
  H3S_KERNELS_PORTABLE = 1, /* on a GPU, the tensor-core kernels that every card since sm_75 runs */
  H3S_KERNELS_REFERENCE = 2 /* on a GPU, plain kernels with the CPU's bits; slow */
} h3s_kernels;

typedef struct h3s_context_params {
  size_t size;
  const char* device;  /* "auto" (the default: a GPU when there is one), "cpu" or "cuda:N" */
  int32_t num_threads; /* of the CPU; 0 (the default): as many as the machine has */
  int32_t kernels;     /* h3s_kernels */
  int32_t use_stream; /* on a GPU: not 0 to run ops on `stream`, 0 (the default) for a stream of the context's
                         own */
  void* stream;       /* a cudaStream_t that outlives the context; NULL is CUDA's default stream */
} h3s_context_params;

H3S_API h3s_status h3s_context_params_init(h3s_context_params* params, size_t size);

/* The context is the caller's to destroy. */
H3S_API h3s_status h3s_context_create(const h3s_context_params* params, h3s_context** context);

/* Waits for the ops in flight. NULL is nothing to do. */
H3S_API void h3s_context_destroy(h3s_context* context);

/* "cpu" or "cuda:0". Owned by the context, as the next two; "" for NULL. */
H3S_API const char* h3s_context_device(const h3s_context* context);
/* "cpu (2 threads, AVX3_DL)" or "cuda:0 (NVIDIA H200, sm_90)". */
H3S_API const char* h3s_context_describe(const h3s_context* context);
/* What decides a result's bits beside the inputs: "cpu", "cuda sm_90". */
H3S_API const char* h3s_context_kernels(const h3s_context* context);

/* Waits for the ops called so far. A GPU's ops are enqueued when their call returns; an error that the device
 * finds later is reported by a later call, naming the op enqueued last. The CPU's are finished. */
H3S_API h3s_status h3s_context_synchronize(h3s_context* context);

/* ---- ops ----
 *
 * A row of a result depends on that row of the inputs alone (of a linear: also a column; of attention: a
 * query of a head), so any split over calls gives the same bits. Outputs do not overlap inputs unless said.
 */

typedef enum h3s_dtype { H3S_F32 = 0, H3S_BF16 = 1, H3S_F16 = 2 } h3s_dtype;

/* O = softmax(scale q k^T) v, head width 128, all keys, no mask. */
typedef struct h3s_attention_params {
  size_t size;
  int32_t dtype; /* h3s_dtype of q, k, v and o: bf16, f16 or f32 */
  float scale;   /* default 1 / sqrt(128) */
  const void* q; /* [heads][q_tokens][128] by strides; on a GPU 16-byte aligned, strides multiples of 8 */
  const void* k; /* [heads][kv_tokens][128] */
  const void* v; /* [heads][kv_tokens][128] */
  void* o;       /* [heads][q_tokens][128] by strides */
  float* lse;    /* [heads][q_tokens] dense: log of the sum of exp(scores), natural; may be NULL */
  int64_t heads, q_tokens, kv_tokens;
  int64_t q_head_stride, q_token_stride;
  int64_t k_head_stride, k_token_stride;
  int64_t v_head_stride, v_token_stride;
  int64_t o_head_stride, o_token_stride;
} h3s_attention_params;

H3S_API h3s_status h3s_attention_params_init(h3s_attention_params* params, size_t size);
H3S_API h3s_status h3s_attention(h3s_context* context, const h3s_attention_params* params);

/* y = round(x w^T + bias). */
typedef struct h3s_linear_params {
  size_t size;
  int32_t x_dtype, w_dtype, y_dtype; /* bf16, f16 or f32 each */
  const void* x;                     /* [m][k], row stride x_stride */
  const void* w;                     /* [n][k] dense */
  const float* bias;                 /* [n]; may be NULL */
  void* y;                           /* [m][n], row stride y_stride */
  int64_t m, n, k;
  int64_t x_stride, y_stride; /* default 0: dense */
} h3s_linear_params;

H3S_API h3s_status h3s_linear_params_init(h3s_linear_params* params, size_t size);
H3S_API h3s_status h3s_linear(h3s_context* context, const h3s_linear_params* params);

/* y = round((sum of x w, exact) x_scale w_scale + bias). */
typedef struct h3s_linear_int8_params {
  size_t size;
  int32_t y_dtype;      /* bf16 or f32 */
  const int8_t* x;      /* [m][k] dense codes */
  const float* x_scale; /* [m] */
  const int8_t* w;      /* [n][k] dense codes */
  const float* w_scale; /* [n] */
  const float* bias;    /* [n]; may be NULL */
  void* y;              /* [m][n], row stride y_stride */
  int64_t m, n, k;
  int64_t y_stride; /* default 0: dense */
} h3s_linear_int8_params;

H3S_API h3s_status h3s_linear_int8_params_init(h3s_linear_int8_params* params, size_t size);
H3S_API h3s_status h3s_linear_int8(h3s_context* context, const h3s_linear_int8_params* params);

/* Codes and one scale a row, max |x| / 127, of x rotated by the group Hadamard matrix. */
typedef struct h3s_quantize_rows_params {
  size_t size;
  int32_t dtype;        /* of x: bf16 or f32 */
  const void* x;        /* [m][k], row stride x_stride */
  int64_t rotate_group; /* 0 (the default): no rotation; or a power of 4 that divides k */
  int8_t* codes;        /* [m][k] dense */
  float* scale;         /* [m] */
  int64_t m, k;
  int64_t x_stride; /* default 0: dense */
} h3s_quantize_rows_params;

H3S_API h3s_status h3s_quantize_rows_params_init(h3s_quantize_rows_params* params, size_t size);
H3S_API h3s_status h3s_quantize_rows(h3s_context* context, const h3s_quantize_rows_params* params);

/* The same of silu(gate) up, which is not rounded in between. */
typedef struct h3s_swiglu_quantize_rows_params {
  size_t size;
  int32_t dtype;        /* of gate_up: bf16 or f32 */
  const void* gate_up;  /* [m][2k] dense: gate, then up */
  int64_t rotate_group; /* as h3s_quantize_rows_params */
  int8_t* codes;        /* [m][k] dense */
  float* scale;         /* [m] */
  int64_t m, k;
} h3s_swiglu_quantize_rows_params;

H3S_API h3s_status h3s_swiglu_quantize_rows_params_init(h3s_swiglu_quantize_rows_params* params, size_t size);
H3S_API h3s_status h3s_swiglu_quantize_rows(h3s_context* context,
                                            const h3s_swiglu_quantize_rows_params* params);

/* y = round(x / sqrt(mean(x^2) + 1e-5) weight). */
typedef struct h3s_rms_norm_params {
  size_t size;
  int32_t dtype;       /* of x and y: bf16 or f32 */
  const void* x;       /* [m][c], row stride x_stride */
  const float* weight; /* [c] */
  void* y;             /* [m][c] dense; may be x itself when that is dense */
  int64_t m, c;
  int64_t x_stride; /* default 0: dense */
} h3s_rms_norm_params;

H3S_API h3s_status h3s_rms_norm_params_init(h3s_rms_norm_params* params, size_t size);
H3S_API h3s_status h3s_rms_norm(h3s_context* context, const h3s_rms_norm_params* params);

/* y = round(round(silu(gate)) up). */
typedef struct h3s_swiglu_params {
  size_t size;
  int32_t dtype;       /* of both: bf16 or f32 */
  const void* gate_up; /* [m][2f] dense: gate, then up */
  void* y;             /* [m][f] dense */
  int64_t m, f;
} h3s_swiglu_params;

H3S_API h3s_status h3s_swiglu_params_init(h3s_swiglu_params* params, size_t size);
H3S_API h3s_status h3s_swiglu(h3s_context* context, const h3s_swiglu_params* params);

#ifdef __cplusplus
}
#endif

#endif
