/* SPDX-License-Identifier: Apache-2.0
 *
 * fa3: exact attention. The C ABI, the only symbols that the library exports.
 *
 *   S = scale * Q K^T,   P = softmax(mask(softcap(S))),   O = P V,   LSE = log(sum(exp(S)))
 *
 * Tiled attention after FlashAttention-3 (arXiv 2407.08608, Algorithm 1) with memory O(N): the
 * score matrix is never stored. C++ callers include <fa3/attention.h>, a thin face over this file.
 *
 * Rules that hold for every function:
 *  - It never prints, never exits, never throws. It returns an fa3_status; fa3_last_error() then
 *    holds one sentence (per thread) that names the argument, what was expected, and what was
 * given.
 *  - It allocates no tensor. The caller owns inputs, outputs and one workspace of queried size.
 *  - An invalid call changes nothing: no output byte is written unless the call was accepted.
 *  - Every params struct starts with struct_size; start from its *_init function, then set fields.
 *    Fields added by later versions go to the end, so that an old caller keeps working.
 */
#ifndef FA3_FA3_H
#define FA3_FA3_H

#include <stddef.h>
#include <stdint.h>

#define FA3_VERSION_MAJOR 0
#define FA3_VERSION_MINOR 1
#define FA3_VERSION_PATCH 0

#if defined(_WIN32)
#define FA3_API __declspec(dllexport)
#else
#define FA3_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fa3_status {
  FA3_OK = 0,
  FA3_INVALID_ARGUMENT = 1,    /* the call is wrong: the message says what to change */
  FA3_UNSUPPORTED = 2,         /* the call is right, but no engine does this here */
  FA3_WORKSPACE_TOO_SMALL = 3, /* ask fa3_*_workspace_size */
  FA3_OUT_OF_MEMORY = 4,       /* the operating system or the device had none */
  FA3_DEVICE_ERROR = 5,        /* the GPU runtime reported an error */
  FA3_INTERNAL_ERROR = 6       /* a defect of fa3: please report the message */
} fa3_status;

typedef enum fa3_dtype {
  FA3_FLOAT32 = 0,
  FA3_FLOAT16 = 1,
  FA3_BFLOAT16 = 2,
  FA3_FLOAT8_E4M3 = 3,
  FA3_INT32 = 4
} fa3_dtype;

/* The values are DLPack's. */
typedef enum fa3_device_type { FA3_CPU = 1, FA3_CUDA = 2 } fa3_device_type;

enum { FA3_MAX_RANK = 5 };

/* Who computes. AUTO picks the fastest engine for the tensors' memory and never moves data. */
typedef enum fa3_engine_id {
  FA3_ENGINE_AUTO = 0,
  FA3_ENGINE_CPU = 1,       /* tiled, vectorised, O(N) memory */
  FA3_ENGINE_REFERENCE = 2, /* readable double precision, on the CPU: the oracle */
  FA3_ENGINE_STANDARD = 3,  /* standard attention on the CPU, S and P stored: the baseline */
  FA3_ENGINE_HOPPER = 4     /* CUDA, compute capability 9.0 */
} fa3_engine_id;

/* A view of memory that the caller owns. Strides count elements, not bytes; the last dimension of a
 * data tensor must have stride 1. data == NULL means "absent" for optional tensors, and is accepted
 * everywhere by the functions that only ask (…_supported, …_workspace_size, …_plan_text). */
typedef struct fa3_tensor {
  void* data;
  int32_t dtype;       /* fa3_dtype */
  int32_t device_type; /* fa3_device_type */
  int32_t device_index;
  int32_t rank;
  int64_t shape[FA3_MAX_RANK];
  int64_t stride[FA3_MAX_RANK];
} fa3_tensor;

/* Softmax scale "d^-0.5". A value nobody computes by accident, so that 0, NaN and negative scales
 * stay errors. */
#define FA3_SCALE_AUTO (-3.402823466e+38f)
#define FA3_WINDOW_UNBOUNDED (-1)

/* Attention options that forward and backward share.
 *
 * Visibility is bottom-right aligned. With offset = seqlen_k - seqlen_q of the sequence, query i
 * sees key j iff  i + offset - window_left <= j <= i + offset + window_right  (inclusive ends, -1 =
 * unbounded), and j <= i + offset if causal. */
typedef struct fa3_options {
  float scale;           /* finite and > 0, or FA3_SCALE_AUTO */
  float softcap;         /* 0 = off; otherwise score = softcap * tanh(scale * q.k / softcap) */
  int64_t window_left;   /* FA3_WINDOW_UNBOUNDED by default */
  int64_t window_right;  /* FA3_WINDOW_UNBOUNDED by default */
  int32_t causal;        /* 0 or 1 */
  int32_t deterministic; /* backward: bitwise repeatable gradients. Forward always is. */
  int32_t num_threads;   /* CPU engines: 0 = one per available core. Never changes the result. */
  int32_t engine;        /* fa3_engine_id; FA3_ENGINE_AUTO by default */

  /* Variable lengths; all int32, rank 1, contiguous; data == NULL = not used.
   * cu_seqlens_* (batch + 1): the tensor is packed, (total, heads, dim), and sequence b owns rows
   *   [cu[b], cu[b+1]). seqused_* (batch): only the first seqused[b] rows of sequence b count. */
  fa3_tensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  /* Upper bounds of the lengths in cu_seqlens_*; needed only when those live on a GPU. 0 = unset.
   */
  int64_t max_seqlen_q, max_seqlen_k;
} fa3_options;

/* q (b, sq, hq, d)   k (b, sk, hk, d)   v (b, sk, hk, dv)   o (b, sq, hq, dv)   lse (b, hq, sq)
 * With cu_seqlens_q: q (total_q, hq, d), o (total_q, hq, dv), lse (hq, total_q); with cu_seqlens_k:
 * k and v (total_k, hk, d | dv). hq % hk == 0; query head i reads key/value head i / (hq / hk).
 * Any strides: a (b, h, s, d) tensor is the same view with its strides swapped.
 * q, k, v share one dtype: float32, float16 or bfloat16. o has that dtype or float32.
 * lse is float32, natural log, optional. sink is float32 (hq), optional: one more logit per query
 * head that joins the denominator and the LSE, and has no value row.
 * A row that sees no key gives o = 0 and lse = -inf (lse = sink where there is one). */
typedef struct fa3_forward_params {
  size_t struct_size;
  fa3_options options;
  fa3_tensor q, k, v, o;
  fa3_tensor lse;
  fa3_tensor sink;
  /* Reserved; UNSUPPORTED until a later version: data must be NULL, num_splits 0. */
  fa3_tensor page_table;   /* int32 (b, max_pages) */
  fa3_tensor batch_index;  /* int32 (b) */
  fa3_tensor left_padding; /* int32 (b) */
  int32_t num_splits;      /* 0 = the library chooses */
  int32_t reserved;
} fa3_forward_params;

/* The gradient of sum(do * o). o and lse are the forward's results; dq, dk, dv have the shapes of
 * q, k, v; dsink (hq) float32 goes with sink. All gradients are written in full. */
typedef struct fa3_backward_params {
  size_t struct_size;
  fa3_options options;
  fa3_tensor q, k, v, o, lse, sink;
  fa3_tensor d_o;
  fa3_tensor dq, dk, dv;
  fa3_tensor dsink;
} fa3_backward_params;

/* Merges attention over disjoint key sets into attention over their union (FlashAttention-2,
 * arXiv 2307.08691, section 3.1):  lse = log(sum_i exp(lse_i)),  o = sum_i exp(lse_i - lse) o_i.
 * o_partial (n, b, s, h, dv) float32, lse_partial (n, b, h, s) float32; o (b, s, h, dv) in float32,
 * float16 or bfloat16; lse (b, h, s) float32, optional. o and lse may be exactly one of the
 * partials (a running merge in place). Rows where every lse_i is -inf give o = 0, lse = -inf. */
typedef struct fa3_merge_params {
  size_t struct_size;
  fa3_tensor o_partial, lse_partial;
  fa3_tensor o, lse;
  int32_t num_threads;
  int32_t reserved;
} fa3_merge_params;

FA3_API void fa3_forward_params_init(fa3_forward_params* params);
FA3_API void fa3_backward_params_init(fa3_backward_params* params);
FA3_API void fa3_merge_params_init(fa3_merge_params* params);

/* Can this call run here? FA3_OK, or the status and (fa3_last_error) the reason why not. */
FA3_API fa3_status fa3_forward_supported(const fa3_forward_params* params);
FA3_API fa3_status fa3_backward_supported(const fa3_backward_params* params);

/* Bytes of workspace that the call needs (may be 0). The workspace lives on the tensors' device,
 * aligned to 256 bytes. */
FA3_API fa3_status fa3_forward_workspace_size(const fa3_forward_params* params, size_t* bytes);
FA3_API fa3_status fa3_backward_workspace_size(const fa3_backward_params* params, size_t* bytes);

/* The plan in words: engine, kernel, tiles, tasks, workspace, and the reason for each choice.
 * Writes at most `capacity` bytes with the final NUL; *needed (may be NULL) gets the full size. */
FA3_API fa3_status fa3_forward_plan_text(const fa3_forward_params* params, char* text,
                                         size_t capacity, size_t* needed);
FA3_API fa3_status fa3_backward_plan_text(const fa3_backward_params* params, char* text,
                                          size_t capacity, size_t* needed);

/* stream is a cudaStream_t for CUDA tensors and ignored for CPU tensors. CPU calls return when the
 * outputs are written; CUDA calls return when the work is queued. Thread-safe. */
FA3_API fa3_status fa3_forward(const fa3_forward_params* params, void* workspace,
                               size_t workspace_bytes, void* stream);
FA3_API fa3_status fa3_backward(const fa3_backward_params* params, void* workspace,
                                size_t workspace_bytes, void* stream);
FA3_API fa3_status fa3_merge(const fa3_merge_params* params, void* stream);

/* The engine at `index`: its name, whether it can run on this machine, and one sentence that says
 * what it found or why it cannot run. Returns FA3_INVALID_ARGUMENT past the last engine. */
typedef struct fa3_engine_info {
  const char* name;
  int32_t available;
  const char* detail;
} fa3_engine_info;
FA3_API fa3_status fa3_engine(int32_t index, fa3_engine_info* info);

/* MAJOR * 10000 + MINOR * 100 + PATCH. */
FA3_API int32_t fa3_version(void);
/* The calling thread's last error sentence; "" after a call that returned FA3_OK. Never NULL. */
FA3_API const char* fa3_last_error(void);
/* "invalid argument", "unsupported", ... Never NULL. */
FA3_API const char* fa3_status_name(fa3_status status);

#ifdef __cplusplus
}
#endif

#endif /* FA3_FA3_H */
