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
 *  - It allocates no tensor. The caller owns inputs, outputs and one workspace, of queried size or
 *    lent when asked for.
 *  - An invalid call changes nothing: no output byte is written unless the call was accepted.
 *  - Every params struct starts with struct_size; start from its *_init function, then set fields.
 *    Later versions append fields to the params structs and to fa3_options. A program works with
 *    every later library: fields that it was compiled without have their defaults. A library that
 *    is older than the program's fa3.h refuses its structs, by struct_size. fa3_tensor and
 *    fa3_engine_info never grow.
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
 * data tensor must have stride 1. An optional tensor is absent when its rank is 0, as the *_init
 * functions leave it. data may be NULL where there are no elements, and everywhere for the
 * functions that only ask (…_supported, …_workspace_size, …_plan_text). */
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
 * unbounded), and j <= i + offset if causal, and (with chunks, as in Llama 4)
 * floor(j / attention_chunk) = floor((i + offset) / attention_chunk). */
typedef struct fa3_options {
  float scale;           /* finite and > 0, or FA3_SCALE_AUTO */
  float softcap;         /* 0 = off; otherwise score = softcap * tanh(scale * q.k / softcap) */
  int64_t window_left;   /* FA3_WINDOW_UNBOUNDED by default */
  int64_t window_right;  /* FA3_WINDOW_UNBOUNDED by default */
  int32_t causal;        /* 0 or 1 */
  int32_t deterministic; /* backward: bitwise repeatable gradients. Forward always is. */
  int32_t num_threads;   /* CPU engines: 0 = one per available core. Never changes the result. */
  int32_t engine;        /* fa3_engine_id; FA3_ENGINE_AUTO by default */

  /* Variable lengths; all int32, rank 1, contiguous; rank 0 = not used.
   * cu_seqlens_* (batch + 1): the tensor is packed, (total, heads, dim), and sequence b owns rows
   *   [cu[b], cu[b+1]). seqused_* (batch): only the first seqused[b] rows of sequence b count. */
  fa3_tensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  /* Upper bounds of the lengths in cu_seqlens_*; needed only when those live on a GPU. 0 = unset.
   */
  int64_t max_seqlen_q, max_seqlen_k;

  int64_t attention_chunk; /* keys of a chunk; 0 = none */
  /* 0 or 1: the bits of a sequence's results do not depend on the sequences beside it: neither on
   * their lengths nor on their number. Costs speed on a GPU (docs/numerics.md); CPU engines are
   * always so in the forward pass. Backward: together with deterministic. */
  int32_t batch_invariant;
  int32_t reserved;
} fa3_options;

/* FP8. A tensor of FA3_FLOAT8_E4M3 (no infinity, largest number 448) comes with its scales, a
 * float32 tensor `descale`, and may come with means, float32 (b, h, d). A number x of row i
 * (counted from the start of its sequence), head h and channel c of sequence b stands for
 *
 *   x * descale + mean[b, h, c]
 *
 * The shape of descale says which rows share a scale:  (1): all;  (b, h): those of a head;
 * (b, h, n) with n >= ceil(s / FA3_DESCALE_ROWS): FA3_DESCALE_ROWS of them, the scale of row i
 * being descale[b, h, i / FA3_DESCALE_ROWS]. For packed tensors b counts sequences, s is the
 * longest. Scales and means have any strides, also 0. Scales are finite and > 0; those in host
 * memory are looked at. No descale: 1. No mean: 0. */
#define FA3_DESCALE_ROWS 64

/* q (b, sq, hq, d)   k (b, sk, hk, d)   v (b, sk, hk, dv)   o (b, sq, hq, dv)   lse (b, hq, sq)
 * With cu_seqlens_q: q (total_q, hq, d), o (total_q, hq, dv), lse (hq, total_q); with cu_seqlens_k:
 * k and v (total_k, hk, d | dv). hq % hk == 0; query head i reads key/value head i / (hq / hk).
 * Any strides: a (b, h, s, d) tensor is the same view with its strides swapped.
 * q, k, v share one dtype: float32, float16 or bfloat16. o has that dtype or float32. FP8: either
 * all three, with o in bfloat16, float16 or float32, or k and v alone (a quantized cache). Forward
 * only. lse is float32, natural log, optional. sink is float32 (hq), optional: one more logit per
 * query head that joins the denominator and the LSE, and has no value row. A row that sees no key
 * gives o = 0 and lse = -inf (lse = sink where there is one). */
typedef struct fa3_forward_params {
  size_t struct_size;
  fa3_options options;
  fa3_tensor q, k, v, o;
  fa3_tensor lse;
  fa3_tensor sink;
  /* Caches, all int32 and optional; the lengths are seqused_k, and there is no cu_seqlens_k.
   * page_table (entries, max_pages): k and v are pages (pages, page_size, hk, d | dv), and key j of
   *   entry e is row j % page_size of page page_table[e][j / page_size]. Pages may be shared;
   * numbers past those that hold keys in use are not looked at. batch_index (b): sequence n reads
   * entry batch_index[n], of the page table or of k and v, instead of entry n. There may be other
   * entries than sequences. left_padding (b): the first left_padding[n] of the seqused_k[n] keys do
   * not count. On a device nobody looks at these before a call, and nothing outside of the cache is
   * read: a page that does not exist counts as one of zeros, a sequence that names no entry has no
   * keys. */
  fa3_tensor page_table, batch_index, left_padding;
  /* Parts of a sequence's keys that are computed apart and merged: 0 = the library chooses, on
   * Hopper by the work of all sequences, or 1 of batch-invariant calls; n = at most n. */
  int32_t num_splits;
  int32_t reserved;
  /* For FP8 (above), else absent. q's scales may also be one for each key/value head: (b, hk, ...).
   * The LSE is that of the scores with k_mean, and o has v_mean in it. */
  fa3_tensor q_descale, k_descale, v_descale;
  fa3_tensor k_mean, v_mean;
} fa3_forward_params;

/* The gradient of sum(d_o * o) + sum(d_lse * lse). o and lse are the forward's results; dq, dk, dv
 * have the shapes of q, k, v; dsink (hq) float32 goes with sink. All gradients are written in full.
 * d_lse has lse's shape and is optional (zero): for losses that read the LSE, such as a z-loss, and
 * for gradients through merged parts. Rows whose lse is -inf ignore it. */
typedef struct fa3_backward_params {
  size_t struct_size;
  fa3_options options;
  fa3_tensor q, k, v, o, lse, sink;
  fa3_tensor d_o;
  fa3_tensor dq, dk, dv;
  fa3_tensor dsink;
  fa3_tensor d_lse;
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

/* Writes new rows into a cache, in place: row i of k and v becomes row seqused[n] + i of sequence
 * n, whose place in the cache page_table and batch_index tell as for a forward call. That call then
 * reads seqused[n] plus the new rows.
 *
 * With rotary_cos and rotary_sin, a rotary embedding turns the first rotary_dim columns of k's rows
 * on the way, and of q's rows into q_rotated, which may be q. Row i of a sequence is at position
 * first_position[n] + i; all queries are at first_position[n] if queries_share_position (for calls
 * that are neither causal nor windowed). Pairs of columns are (i, i + rotary_dim / 2), or (2 i, 2 i
 * + 1) if rotary_interleaved. Computed in float32, rounded once.
 *
 * A cache of FA3_FLOAT8_E4M3 takes k and v in float32, float16 or bfloat16, divided by k_descale
 * and v_descale: (1), or (b, hk); 1 without them. After a rotation, in float32, rounded once; what
 * is beyond 448 becomes 448, and infinity NaN. Such scales are of no use if rows follow that are
 * much larger. It takes k and v of FA3_FLOAT8_E4M3 too, which were divided before: as they are,
 * without scales here.
 *
 * Of a row that two sequences write, each element is from either. On a device, where nobody looks
 * at the arrays before a call, a row that has no place in the cache is not written, and a position
 * beyond the tables is their nearest. */
typedef struct fa3_append_params {
  size_t struct_size;
  fa3_tensor k_cache, v_cache; /* (b, s, hk, d | dv), or pages (pages, page_size, hk, d | dv) */
  fa3_tensor k, v;             /* (b, s_new, hk, d | dv); (total, hk, d | dv) if packed */
  fa3_tensor cu_seqlens_new;   /* int32 (b + 1), optional: k and v are packed */
  fa3_tensor seqused;          /* int32 (b): rows in use before the call */
  fa3_tensor page_table, batch_index; /* optional */
  fa3_tensor rotary_cos,
      rotary_sin;                  /* optional: (positions, rotary_dim / 2), k's dtype or float32 */
  fa3_tensor first_position;       /* int32 (b), optional: seqused */
  fa3_tensor q, q_rotated;         /* optional: (b, sq, hq, d); (total_q, hq, d) if packed */
  fa3_tensor cu_seqlens_q;         /* int32 (b + 1), optional: q is packed */
  fa3_tensor k_descale, v_descale; /* float32, optional: of an e4m3 cache */
  int32_t rotary_interleaved;      /* 0 or 1 */
  int32_t queries_share_position;  /* 0 or 1 */
  int32_t num_threads;             /* as that of fa3_options */
  int32_t reserved;
} fa3_append_params;

/* x -> y = e4m3(x' / descale): block quantization, incoherent processing (FlashAttention-3, section
 * 3.3) and centring. x (b, s, h, d) float32, float16 or bfloat16; y of that shape, float8_e4m3.
 * x' is x after these steps, each of them optional, in float32 (docs/numerics.md has every
 * rounding; all engines give the same bits):
 *   1. a rotary embedding of the first 2 r channels: rotary_cos and rotary_sin (positions >= s, r)
 *      float32; row i of a sequence takes row i. Pairs are (c, c + r), or (2 c, 2 c + 1) if
 *      rotary_interleaved.
 *   2. centring, where `mean` (b, h, d) is given: the mean of each channel over the sequence's rows
 * is subtracted, and written after step 3 as attention takes it (k_mean, v_mean). Not for q.
 *   3. hadamard: random signs of the channels, chosen by seed, then a Hadamard matrix over d.
 * Attention of q and k that were both treated so, with one seed, is the same but for roundings.
 * descale is written; its shape chooses who shares a scale (above): one for 64 rows is the most
 * accurate. It is the largest |x'| / 448, at least 2^-126. Numbers that are not finite count
 * neither for scales nor for means, and become NaN. Rows that no sequence uses count for nothing,
 * and y is 0. */
typedef struct fa3_quantize_params {
  size_t struct_size;
  fa3_tensor x, y, descale;
  fa3_tensor mean;                      /* optional */
  fa3_tensor rotary_cos, rotary_sin;    /* optional */
  fa3_tensor cu_seqlens, seqused;       /* as those of fa3_options */
  int64_t max_seqlen;                   /* likewise */
  uint64_t seed;                        /* of the signs */
  int32_t hadamard, rotary_interleaved; /* 0 or 1 */
  int32_t num_threads, engine;          /* as those of fa3_options */
} fa3_quantize_params;

/* Defaults for every field of a struct of `struct_size` bytes: of this version or an older one. */
FA3_API void fa3_forward_params_init_sized(fa3_forward_params* params, size_t struct_size);
FA3_API void fa3_backward_params_init_sized(fa3_backward_params* params, size_t struct_size);
FA3_API void fa3_merge_params_init_sized(fa3_merge_params* params, size_t struct_size);
FA3_API void fa3_append_params_init_sized(fa3_append_params* params, size_t struct_size);
FA3_API void fa3_quantize_params_init_sized(fa3_quantize_params* params, size_t struct_size);

/* Inline, because the size that counts is the one that the caller was compiled with. */
static inline void fa3_forward_params_init(fa3_forward_params* params) {
  fa3_forward_params_init_sized(params, sizeof(fa3_forward_params));
}
static inline void fa3_backward_params_init(fa3_backward_params* params) {
  fa3_backward_params_init_sized(params, sizeof(fa3_backward_params));
}
static inline void fa3_merge_params_init(fa3_merge_params* params) {
  fa3_merge_params_init_sized(params, sizeof(fa3_merge_params));
}
static inline void fa3_append_params_init(fa3_append_params* params) {
  fa3_append_params_init_sized(params, sizeof(fa3_append_params));
}
static inline void fa3_quantize_params_init(fa3_quantize_params* params) {
  fa3_quantize_params_init_sized(params, sizeof(fa3_quantize_params));
}

/* Can this call run here? FA3_OK, or the status and (fa3_last_error) the reason why not. */
FA3_API fa3_status fa3_forward_supported(const fa3_forward_params* params);
FA3_API fa3_status fa3_backward_supported(const fa3_backward_params* params);
FA3_API fa3_status fa3_quantize_supported(const fa3_quantize_params* params);

/* Do cu_seqlens, seqused, page_table, batch_index and left_padding hold what they may? FA3_OK, or
 * the sentence that names the entry. A call asks this itself where they are in host memory. Where
 * they are on a device it never looks, since it would have to wait; this function copies them
 * behind what the stream has queued, and waits. */
FA3_API fa3_status fa3_forward_validate(const fa3_forward_params* params, void* stream);

/* Bytes of workspace that the call needs (may be 0). The workspace lives on the tensors' device,
 * aligned to 256 bytes, and shares no memory with them. */
FA3_API fa3_status fa3_forward_workspace_size(const fa3_forward_params* params, size_t* bytes);
FA3_API fa3_status fa3_backward_workspace_size(const fa3_backward_params* params, size_t* bytes);
FA3_API fa3_status fa3_quantize_workspace_size(const fa3_quantize_params* params, size_t* bytes);

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
FA3_API fa3_status fa3_append(const fa3_append_params* params, void* stream);
FA3_API fa3_status fa3_quantize(const fa3_quantize_params* params, void* workspace,
                                size_t workspace_bytes, void* stream);

/* The same calls with a workspace that the caller lends when it is known how much is needed: a call
 * plans once, where asking for the size first plans twice.
 *
 * allocate(context, bytes) is called at most once, on the calling thread, only for bytes > 0, and
 * only after the call was accepted, before anything is queued or written. It returns at least
 * `bytes` bytes on the tensors' device, aligned to 256, which must stay until the call's work is
 * done: until the function returns for CPU tensors, in order of the stream for CUDA tensors. NULL
 * ends the call with FA3_OUT_OF_MEMORY. It may not throw. */
typedef void* (*fa3_workspace_allocator)(void* context, size_t bytes);
FA3_API fa3_status fa3_forward_with_allocator(const fa3_forward_params* params,
                                              fa3_workspace_allocator allocate, void* context,
                                              void* stream);
FA3_API fa3_status fa3_backward_with_allocator(const fa3_backward_params* params,
                                               fa3_workspace_allocator allocate, void* context,
                                               void* stream);
FA3_API fa3_status fa3_quantize_with_allocator(const fa3_quantize_params* params,
                                               fa3_workspace_allocator allocate, void* context,
                                               void* stream);

/* The engine at `index`: its name, whether it can run on this machine, and one sentence that says
 * what it found or why it cannot run. Both strings stay valid until the process ends. Returns
 * FA3_INVALID_ARGUMENT past the last engine. What later versions tell of engines comes through new
 * functions. */
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
