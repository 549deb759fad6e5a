/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Exact attention. The C ABI: the only symbols that the library exports.
 *
 *     S = scale * Q K^T,  P = softmax(mask(softcap(S))),  O = P V,  LSE = log(sum(exp(S)))
 *
 * Tiled attention after FlashAttention-3 (arXiv 2407.08608, Algorithm 1) with memory O(N): the
 * score matrix is never stored. C++ callers include `fa3/attention.h`, which wraps this file.
 *
 * Rules that hold for every function:
 *
 * - It never exits and never throws, and it prints only what the environment asks for, on stderr:
 *   `FA3_MONITOR=1` a summary of the calls when the program ends, `FA3_LOG=call` a line a call.
 * - If it can fail it returns an fa3_status. fa3_last_error() then holds one sentence, per thread,
 *   that names the argument, what was expected, and what was given.
 * - It allocates no tensor. The caller owns inputs, outputs and one workspace, of queried size or
 *   lent when asked for.
 * - An invalid call changes nothing: no output byte is written unless the call was accepted.
 * - It is thread-safe. What one thread writes, another may not use at the same time.
 * - Every params struct starts with `struct_size`: start from its `*_init` function, then set
 *   fields. Later versions append fields to the params structs and to fa3_options. A program works
 *   with every later library: fields that it was compiled without have their defaults. A library
 *   that is older than the program's header refuses its structs, by `struct_size`. fa3_tensor,
 *   fa3_block_lists and fa3_engine_info never grow.
 *
 * Names of extents in shapes:
 *
 * - `b`: sequences; `sq`, `sk`: rows (tokens) of queries and of keys; `s`: rows of either.
 * - `hq`, `hk`: query heads and key/value heads, `hq % hk == 0`. Query head i reads key/value head
 *   `i / (hq / hk)`.
 * - `d`, `dv`: head dims of queries and keys, and of values.
 * - `total_q`, `total_k`: rows of a packed tensor, all sequences one after the other.
 */
#ifndef FA3_FA3_H
#define FA3_FA3_H

#include <stddef.h>
#include <stdint.h>

#define FA3_VERSION_MAJOR 0 /**< Version of this header; fa3_version() is the library's. */
#define FA3_VERSION_MINOR 1 /**< Version of this header; fa3_version() is the library's. */
#define FA3_VERSION_PATCH 0 /**< Version of this header; fa3_version() is the library's. */

#if defined(_WIN32)
#define FA3_API __declspec(dllexport)
#else
#define FA3_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** What a call returns. */
typedef enum fa3_status {
  FA3_OK = 0,                  /**< done, or queued */
  FA3_INVALID_ARGUMENT = 1,    /**< the call is wrong: the message says what to change */
  FA3_UNSUPPORTED = 2,         /**< the call is right, but no engine does this here */
  FA3_WORKSPACE_TOO_SMALL = 3, /**< ask for the size first: fa3_forward_workspace_size() */
  FA3_OUT_OF_MEMORY = 4,       /**< the operating system or the device had none */
  FA3_DEVICE_ERROR = 5,        /**< the GPU runtime reported an error */
  FA3_INTERNAL_ERROR = 6       /**< a defect of fa3: please report the message */
} fa3_status;

/** Element types of tensors. */
typedef enum fa3_dtype {
  FA3_FLOAT32 = 0,     /**< 32 bits */
  FA3_FLOAT16 = 1,     /**< IEEE 754 binary16 */
  FA3_BFLOAT16 = 2,    /**< the upper half of a float32 */
  FA3_FLOAT8_E4M3 = 3, /**< OCP FP8 E4M3: no infinity, largest number 448; see FA3_DESCALE_ROWS */
  FA3_INT32 = 4,       /**< lengths and places */
  FA3_FLOAT8_E5M2 = 5  /**< OCP FP8 E5M2: float16's upper byte, of caches alone: FA3_DESCALE_ROWS */
} fa3_dtype;

/** Where memory is. The values are DLPack's. */
typedef enum fa3_device_type {
  FA3_CPU = 1, /**< host memory */
  FA3_CUDA = 2 /**< memory of a CUDA device */
} fa3_device_type;

enum {
  FA3_MAX_RANK = 5 /**< most dimensions of a tensor */
};

/** Who computes. */
typedef enum fa3_engine_id {
  FA3_ENGINE_AUTO = 0,      /**< the fastest engine for the tensors' memory; never moves data. For
                                 attention the one that the environment variable `FA3_ENGINE` names
                                 where the first call finds it, if it takes that memory */
  FA3_ENGINE_CPU = 1,       /**< tiled, vectorised, O(N) memory */
  FA3_ENGINE_REFERENCE = 2, /**< readable double precision, on the CPU: the oracle */
  FA3_ENGINE_STANDARD = 3,  /**< standard attention on the CPU, S and P stored: the baseline */
  FA3_ENGINE_HOPPER = 4,    /**< CUDA, compute capability 9.0 */
  FA3_ENGINE_AMPERE = 5     /**< CUDA, compute capability 8.0 or later */
} fa3_engine_id;

/** A view of memory that the caller owns.
 *
 * An optional tensor is absent when its rank is 0, as the `*_init` functions leave it. */
typedef struct fa3_tensor {
  /** First element. May be NULL where there are no elements, and everywhere for the functions that
   * only ask: `*_supported`, `*_workspace_size`, `*_plan_text`. */
  void* data;
  int32_t dtype;                /**< an fa3_dtype */
  int32_t device_type;          /**< an fa3_device_type */
  int32_t device_index;         /**< which CUDA device; 0 for the CPU */
  int32_t rank;                 /**< dimensions in use; 0: the tensor is absent */
  int64_t shape[FA3_MAX_RANK];  /**< extents, in elements */
  int64_t stride[FA3_MAX_RANK]; /**< in elements, not bytes; 1 for a data tensor's last dimension */
} fa3_tensor;

/** Softmax scale `d^-0.5`. A value that nobody computes by accident, so that 0, NaN and negative
 * scales stay errors. */
#define FA3_SCALE_AUTO (-3.402823466e+38f)
/** An end of the window that is not bounded. */
#define FA3_WINDOW_UNBOUNDED (-1)

/** Queries, and keys, of a block of a block mask. */
#define FA3_MASK_BLOCK 128

/** A tensor that a score function reads: elements of any type, which the text names. */
typedef struct fa3_captured_tensor {
  const void* data;  /**< in the memory of q */
  int32_t rank;      /**< dimensions, 0 to FA3_MAX_CAPTURED_RANK */
  int64_t shape[4];  /**< extents, 1 to 2^31 - 1 */
  int64_t stride[4]; /**< steps in elements, less than 2^31 */
  float* gradient;   /**< row-major, of its shape: a backward pass adds to it; null: not wanted */
} fa3_captured_tensor;

enum {
  FA3_MAX_CAPTURED_RANK = 4 /**< most dimensions of a captured tensor */
};

enum {
  FA3_MAX_CAPTURED_TENSORS = 8 /**< most of a score function */
};

/** What the text of a score function is the body of. `score` is `scale * q.k`; b counts sequences,
 * h query heads, q_idx and kv_idx the rows of a sequence. x is the function's element. */
typedef enum fa3_score_kind {
  /** `float f(float score, float x, int b, int h, int q_idx, int kv_idx)`: the new score. */
  FA3_SCORE_ANY,
  /** `float f(float x, int b, int h, int q_idx, int kv_idx)`: a number that is added to the score,
   * as in all kinds below. Kernels begin their products with it, which costs the least. */
  FA3_SCORE_ADDED,
  /** `float f(int b, int h, int kv_idx)`: computed once for all queries of a tile. */
  FA3_SCORE_KEY_TERM,
  /** `Line f(int b, int h, int q_idx, int kv_idx)` returns `{number, step}`: the number, and by how
   * much it changes to the next key's, which is the same along a row. ALiBi is one. */
  FA3_SCORE_ROW_LINE,
  /** The same, where the step may change once along a row: two lines meet. */
  FA3_SCORE_ROW_LINES
} fa3_score_kind;

/** How the place of x in its tensor follows from the key. `indices` is the body of a function that
 * returns `at(i, ...)`. */
typedef enum fa3_element_kind {
  /** There is no element, and x is 0. */
  FA3_ELEMENT_NONE,
  /** x is at (i, ..., q_idx, kv_idx), of 16 bits; `indices(int b, int h)`. Of a bias as large as
   * the scores a kernel may bring whole tiles. */
  FA3_ELEMENT_OF_SCORE,
  /** x is at (i, ..., kv_idx), of 16 bits; `indices(int b, int h, int q_idx)`. A kernel may load it
   * ahead. */
  FA3_ELEMENT_OF_KEY,
  /** x is at (i, ...); `indices(int b, int h, int q_idx, int kv_idx)`. The last index grows by
   * `step` from key to key, and no other depends on kv_idx: a table of relative positions. */
  FA3_ELEMENT_RUN,
  /** The same, where bounds may hold the last index, which then stays. It is nowhere negative. */
  FA3_ELEMENT_CLAMPED_RUN
} fa3_element_kind;

/** The one element of a captured tensor that a function gets as x. */
typedef struct fa3_score_element {
  int32_t kind;            /**< fa3_element_kind */
  int32_t tensor;          /**< its number */
  int32_t step;            /**< of a run */
  int32_t stores_gradient; /**< 1: the tensor's gradient is stored: see fa3_score_function */
  int32_t head_index;      /**< which of `indices` depends on h; -1: none. Heads that read the same
                                elements run together. */
  const char* type;        /**< of the tensor's elements, as in load<T, n> */
  const char* indices;     /**< `return at(h, q_idx - kv_idx + 511);`; read during the call */
} fa3_score_element;

/** A score function of the caller's: CUDA text that becomes a part of the kernel.
 *
 * What it returns takes the score's place before mask and softmax; -inf hides the key. The text may
 * call `tangent(x)`, which is tanh, and load captured tensors: `load<T, n>(i, ...)` is an element
 * of tensor n of type T (float, int32_t, int64_t, bool, ..., Half, Bfloat), one index a dimension:
 * negative ones count from the end, then all are clamped, so that nothing outside of the tensor is
 * read. Indices of `at(i, ...)` are alike. x is what `load` gives: of a tensor of integers an int.
 *
 * Every function can be FA3_SCORE_ANY without an element. A caller who says more gets faster
 * kernels:
 *
 *     {.kind = FA3_SCORE_ROW_LINE,
 *      .text = "const float slope = load<float, 0>(h); return {slope * (kv_idx - q_idx), slope};"}
 *     {.kind = FA3_SCORE_ADDED, .text = "return x;",
 *      .element = {.kind = FA3_ELEMENT_RUN, .step = -1, .type = "Half",
 *                  .indices = "return at(h, q_idx - kv_idx + 511);"}}
 *
 * The first call compiles it, in a second or two, by libnvrtc (which FA3_NVRTC or `compiler` name,
 * or the loader finds); later calls, and later processes of the same user, find the machine code
 * again (FA3_CACHE_DIR; ~/.cache/fa3). The text is code of this process: as trusted as the program.
 * On GPUs since Ampere, in 16 bits; over caches too, also of FP8, where kv_idx counts from the
 * first key behind left_padding. Not with softcap, dropout or FP8 queries.
 *
 * A backward pass has two more texts, as no derivative is derived here. `slope`, of FA3_SCORE_ANY
 * alone, is the body of
 *
 *     float df_dscore(float score, int b, int h, int q_idx, int kv_idx)
 *
 * and `gradients` that of a function that gets the gradient of what f returned and adds to those of
 * captured tensors, in any order: add<n>(value, i, ...) to that of the element which load<T, n>(i,
 * ...) reads. Where no index depends on q_idx, add_for_key<n> does it with fewer additions to
 * memory, and add_for_tile<n>, where none depends on kv_idx either; each once a tensor.
 * add_for_distance<n, 1>(value, index, i, ...) is add<n>(value, i, ..., index) where the index
 * grows by 1 (or -1) from key to key and falls by as much from query to query: once, outside of any
 * branch.
 *
 *     void g(float gradient, int b, int h, int q_idx, int kv_idx)
 *     add_for_tile<0>(gradient * (kv_idx - q_idx), h);
 *
 * With gradients_use_score, g has a second argument `float score`: what f was given, in float16.
 * The slope is then taken there, too.
 *
 * Where the slope is 1, the gradient of an element of FA3_ELEMENT_OF_SCORE is that of the score.
 * With stores_gradient it is stored as it comes, in q's type, once for each score that the masks
 * leave, provided that no two scores read one element; `gradients`, which may be empty, then says
 * nothing of it. On Hopper, to head dims of 128, where TMA takes the tensor and its gradient:
 * multiples of 16 bytes; else FA3_UNSUPPORTED. */
typedef struct fa3_score_function {
  int32_t kind;                       /**< fa3_score_kind: what `text` is the body of */
  const char* text;                   /**< the body; read during the call */
  fa3_score_element element;          /**< what x is */
  const fa3_captured_tensor* tensors; /**< `num_tensors` of them, or null */
  int32_t num_tensors;                /**< 0 to FA3_MAX_CAPTURED_TENSORS */
  int32_t may_hide; /**< 1: it returns -inf for many keys, and the kernel is compiled for that */
  int32_t repeats_tangents; /**< 1: `text` calls tangent() and loads nothing: a kernel may run it
                                 twice, first for tangents near 0 alone, which cost a third */

  /** 1: the call makes its kernel, for calls like it, and computes nothing: what a server does
   * before its first request. Threads that make different kernels do so at once. */
  int32_t only_compiles;
  const char* compiler; /**< the path of libnvrtc, or null */

  /* Of backward passes: */
  const char* slope;           /**< null: 1, wherever f is not -inf */
  const char* gradients;       /**< null: captured tensors have none */
  int32_t gradients_use_score; /**< 1: `gradients` has the argument `score` */
} fa3_score_function;

/** Lists of a block mask's visible blocks, made once for many calls.
 *
 * An engine that visits blocks by lists makes them in each call, in its workspace.
 * fa3_forward_make_block_lists() and fa3_backward_make_block_lists() make those of a call
 * beforehand. Later calls get them in `block_lists` of fa3_options, and make none. Equal in all
 * these calls must be: the pass (and whether it is deterministic), the lengths, block_mask and
 * block_mask_bits with their addresses and strides, causal, window and chunk, and the device. A
 * call that differs in one of these refuses the lists. Types, head dims, heads of q and k, scale
 * and score function may differ.
 *
 * Not checked: that `data` still holds the lists, that the mask's arrays still hold the mask, and
 * that the stream of a call runs after the one that made the lists. Calls only read the lists, so
 * any number of streams may use them at once. */
typedef struct fa3_block_lists {
  void* data;           /**< the caller's memory with the lists; NULL: calls go without lists */
  int64_t made_for[23]; /**< written and compared by the library: the call they were made for */
} fa3_block_lists;

/** Attention options that forward and backward share.
 *
 * Visibility is bottom-right aligned. With `offset = seqlen_k - seqlen_q` of the sequence, query i
 * sees key j if and only if all of these hold:
 *
 * - `i + offset + window_shift - window_left <= j <= i + offset + window_shift + window_right`,
 *   both ends included;
 * - `j <= i + offset`, if causal;
 * - `floor(j / attention_chunk) == floor((i + offset) / attention_chunk)`, if there are chunks, as
 *   in Llama 4. */
typedef struct fa3_options {
  float scale;           /**< finite and > 0, or FA3_SCALE_AUTO, the default */
  float softcap;         /**< 0: off; else score = `softcap * tanh(scale * q.k / softcap)` */
  int64_t window_left;   /**< in keys; FA3_WINDOW_UNBOUNDED by default */
  int64_t window_right;  /**< in keys; FA3_WINDOW_UNBOUNDED by default */
  int32_t causal;        /**< 0 or 1 */
  int32_t deterministic; /**< 0 or 1. Backward: bitwise repeatable gradients. Forward always is. */
  int32_t num_threads;   /**< CPU engines: 0 = one per core, no more than OMP_NUM_THREADS and the
                            cgroups' CPU quota. Never changes the result. */
  int32_t engine;        /**< an fa3_engine_id; FA3_ENGINE_AUTO by default */

  /** int32 (b + 1), contiguous, optional: q is packed, (total_q, hq, d), and sequence n owns rows
   * `[cu_seqlens_q[n], cu_seqlens_q[n + 1])`.
   *
   * On a device nobody checks lengths before a call. Whatever they hold, it ends and touches
   * nothing outside its tensors; what rows of sequences that overlap get is unspecified
   * (docs/numerics.md). */
  fa3_tensor cu_seqlens_q;
  fa3_tensor cu_seqlens_k; /**< the same for k and v */
  /** int32 (b), contiguous, optional: only the first `seqused_q[n]` rows of sequence n count. */
  fa3_tensor seqused_q;
  fa3_tensor seqused_k; /**< the same for k and v; the lengths of a cache */
  /** Upper bound of the lengths in cu_seqlens_q, in rows. Needed only when those are on a GPU. 0:
   * unset. */
  int64_t max_seqlen_q;
  int64_t max_seqlen_k; /**< the same for cu_seqlens_k */

  int64_t attention_chunk; /**< keys of a chunk; 0 = none */
  /** 0 or 1: the bits of a sequence's results do not depend on the sequences beside it, neither on
   * their lengths nor on their number. Costs speed on a GPU (docs/numerics.md). The forward pass of
   * CPU engines always is. Backward: together with deterministic. */
  int32_t batch_invariant;
  /** In keys: the window lies about the diagonal moved by this, to later keys if > 0. So a band
   * may lie beside the diagonal: `window_right = 0, window_shift = -1` is every earlier key.
   * Absolute value below 2^30. */
  int32_t window_shift;
  /** Number of SMs that the call leaves to concurrent work; >= 0 and fewer than the device has.
   * Kernels whose CTAs compute several tiles, or split keys, have grids for the other SMs; where
   * two CTAs share an SM, twice as many SMs may be left half free instead. The kernels before and
   * after, and the backward, have a CTA for each of their blocks and use any SM that is free: a
   * green context bounds them too. CPU engines ignore it. It changes bits where the number of SMs
   * of a GPU does (docs/numerics.md). */
  int32_t sm_margin;
  /** Dropout: the probability, 0 to 1, with which a weight of P counts as 0; 0: off. The others are
   * divided by `1 - dropout_p`, in the gradients too. The LSE is that without dropout.
   *
   * In units of 2^-16: at least one of them above 0, and fewer than 2^16 below 1; 1 gives zeros.
   * Which weights are dropped depends on the seed, the offset, the sequence, the query head, the
   * query and the key alone, with rows counted within the sequence: fa3_dropout_mask() has them.
   * Not with FP8, page_table or batch_index. */
  float dropout_p;
  uint64_t dropout_seed;   /**< any number; the backward needs the forward's */
  uint64_t dropout_offset; /**< any number; another one is another mask */
  /** Optional: where the seed is, in the tensors' memory, instead of dropout_seed. It is read when
   * the work runs, so that a CUDA graph that is launched again takes what is there then. */
  const uint64_t* dropout_seed_at;
  const uint64_t* dropout_offset_at; /**< the same for dropout_offset */
  /** The position of the call's first sequence, query head, query and key in a larger call. A part
   * of that call, such as a rank's of a context-parallel group, then drops the same weights. Each
   * >= 0; the first two below 2^31, the others below 2^33 together with their lengths,
   * dropout_query a multiple of 16, dropout_key of 64. */
  int64_t dropout_sequence;
  int64_t dropout_head;  /**< the same for the first query head */
  int64_t dropout_query; /**< the same for the first query */
  int64_t dropout_key;   /**< the same for the first key */

  /** A mask as data, besides causal, window and chunks: int32 (b | 1, hq | 1, nq, nk), optional,
   * the last dimension contiguous. An entry is about a block of FA3_MASK_BLOCK queries and as many
   * keys, which count within their sequence: 0, no query sees a key of it; -1, each query sees each
   * key; n > 0, `block_mask_bits[n - 1]` says which. There are entries for the longest sequence,
   * `nq >= ceil(sq / FA3_MASK_BLOCK)` and `nk >= ceil(sk / FA3_MASK_BLOCK)`; an extent of 1 serves
   * all sequences, or all query heads.
   *
   * On a device nobody checks the entries: one that is neither 0 nor -1 and names no bits is 0. */
  fa3_tensor block_mask;
  /** int32 (n, FA3_MASK_BLOCK, FA3_MASK_BLOCK / 32), contiguous, aligned to 16 bytes; needed where
   * an entry of block_mask is above 0. Query i of a block sees its key j if bit `j % 32` of word
   * `j / 32` of row i is 1. Bits of queries and keys past the last ones are not read. Blocks may
   * share bits. */
  fa3_tensor block_mask_bits;

  const fa3_score_function* score; /**< optional: what scores become before the softmax */
  /** Optional, with block_mask: its lists, made before for a call like this one. The bits of the
   * results are the same. */
  const fa3_block_lists* block_lists;
} fa3_options;

/** Rows that share a scale in block quantization.
 *
 * FP8: a tensor of FA3_FLOAT8_E4M3 or FA3_FLOAT8_E5M2 comes with its scales, a float32 tensor
 * `descale`, and may come with means, float32 (b, h, d). A number x of row i (counted from the
 * start of its sequence), head h and channel c of sequence b stands for
 *
 *     x * descale + mean[b, h, c]
 *
 * The shape of descale says which rows share a scale:
 *
 * - (1): all rows;
 * - (b, h): the rows of a head of a sequence;
 * - (b, h, n) with `n >= ceil(s / FA3_DESCALE_ROWS)`: FA3_DESCALE_ROWS of them. The scale of row i
 *   is `descale[b, h, i / FA3_DESCALE_ROWS]`.
 *
 * For packed tensors b counts sequences, and s is the longest. Scales and means have any strides,
 * also 0. Scales are finite and > 0; those in host memory are checked. No descale: 1. No mean: 0.
 */
#define FA3_DESCALE_ROWS 64

/** Keys within which transposed values have an order of their own.
 *
 * FP8 tensor cores sum along what lies side by side in memory, which for P V are keys. Values of
 * FA3_FLOAT8_E4M3 that lie so need not be transposed by the call that reads them: `v_transposed` of
 * fa3_forward_params, `transposed` of fa3_quantize_params, which writes them. They keep the shape
 * (b, s, h, d) as a view: stride 1 in dimension 1, multiples of 16 in the others, at an address
 * that is one. Within each 16 keys, key i lies at `4 (i / 2 % 4) + 2 (i / 8) + i % 2`. A channel
 * has memory for a multiple of 16 keys, with zeros behind the last one.
 *
 * Only where all sequences have one length: not with lengths of keys, nor over a cache. Engines
 * hopper and reference read them. */
#define FA3_TRANSPOSED_KEYS 16

/** Attention: inputs, outputs and options of fa3_forward().
 *
 * Any strides: a (b, h, s, d) tensor is the same view with its strides swapped. q, k and v share
 * one dtype: float32, float16 or bfloat16. FP8 (FA3_DESCALE_ROWS has the rules; forward only):
 * either all three are FA3_FLOAT8_E4M3, or k and v alone (a quantized cache) are FA3_FLOAT8_E4M3
 * or FA3_FLOAT8_E5M2.
 *
 * A row that sees no key gives o = 0 and lse = -inf (lse = sink where there is one). */
typedef struct fa3_forward_params {
  size_t struct_size;  /**< set by fa3_forward_params_init() */
  fa3_options options; /**< mask, scale, lengths, engine */
  fa3_tensor q;        /**< (b, sq, hq, d), or (total_q, hq, d) with cu_seqlens_q */
  fa3_tensor k;        /**< (b, sk, hk, d), or (total_k, hk, d) with cu_seqlens_k */
  fa3_tensor v;        /**< (b, sk, hk, dv), or (total_k, hk, dv) with cu_seqlens_k */
  /** Written: (b, sq, hq, dv) or (total_q, hq, dv), in q's dtype or float32; for q of
   * FA3_FLOAT8_E4M3 in bfloat16, float16 or float32. */
  fa3_tensor o;
  fa3_tensor lse; /**< written, optional: (b, hq, sq) or (hq, total_q), float32, natural log */
  /** float32 (hq), optional: one more logit per query head that joins the denominator and the LSE,
   * and has no value row. +inf takes the whole row (o = 0, lse = +inf), -inf is none. */
  fa3_tensor sink;
  /** int32 (entries, max_pages), optional: k and v are pages, (pages, page_size, hk, d | dv). Key j
   * of entry e is row `j % page_size` of page `page_table[e][j / page_size]`. Pages may be shared.
   * Numbers past those that hold keys in use are not read. The lengths of a cache are seqused_k,
   * and there is no cu_seqlens_k.
   *
   * On a device nobody checks page_table, batch_index and left_padding before a call
   * (fa3_forward_validate() does), and nothing outside of the cache is read: a page that does not
   * exist counts as one of zeros, a sequence that names no entry has no keys. */
  fa3_tensor page_table;
  /** int32 (b), optional: sequence n reads entry `batch_index[n]` of the page table, or of k and v,
   * instead of entry n. There may be other entries than sequences. */
  fa3_tensor batch_index;
  /** int32 (b), optional: the first `left_padding[n]` of the `seqused_k[n]` keys do not count. */
  fa3_tensor left_padding;
  /** Splits of a sequence's keys that are computed apart and merged. 0: the library chooses, on
   * Hopper by the work of all sequences, or 1 for batch-invariant calls. n: at most n. */
  int32_t num_splits;
  int32_t reserved; /**< unused */
  /** FP8 scale of q, float32: (1), (b, hq) or (b, hq, n), or one for each key/value head, (b, hk)
   * or (b, hk, n). */
  fa3_tensor q_descale;
  fa3_tensor k_descale; /**< FP8 scale of k, float32: (1), (b, hk) or (b, hk, n) */
  fa3_tensor v_descale; /**< FP8 scale of v, float32: (1), (b, hk) or (b, hk, n) */
  fa3_tensor k_mean;    /**< FP8 mean of k, float32 (b, hk, d); the LSE includes it */
  fa3_tensor v_mean;    /**< FP8 mean of v, float32 (b, hk, dv); o includes it */
  /** float32, o's shape, with lse_partial, optional: a result for the same queries over other keys,
   * which this call goes on from. o and lse are then over the keys of both, as fa3_merge() would
   * make them: one step of ring attention. Rows that see no key here keep what they had. It may be
   * exactly o, where that is float32; a last call gives o in q's dtype, rounded once. */
  fa3_tensor o_partial;
  fa3_tensor lse_partial; /**< float32, lse's shape, with o_partial; may be exactly lse */
  /** 0 or 1: v lies transposed, as FA3_TRANSPOSED_KEYS says; q, k and v are FA3_FLOAT8_E4M3. */
  int32_t v_transposed;
  int32_t reserved_2; /**< unused */
  /** Optional: logits of an output gate, `o = sigmoid(gate) * attention`. (b, sq, hq, dv), or (b,
   * sq, hq, 1) for one number a row; packed (total_q, hq, dv | 1). float32, float16 or bfloat16.
   * The LSE does not change, and a sink acts before the gate. Computed in float32, rounded once.
   * A NaN makes its outputs NaN, or leaves those that are 0; a row that sees no key is 0.
   * Not with o_partial: gate the merged result. */
  fa3_tensor gate;
  /** Written, optional: float32 (b, hq), b sequences also where q is packed. The largest
   * `scale * q.k` over the pairs that lengths and masks leave: before softcap and dropout, without
   * the sink. -inf where there is no pair, NaN if one of them is NaN. It has no gradient. Beside
   * o_partial it is that of this call's keys: take the larger one. Not with a score function. */
  fa3_tensor max_logit;
} fa3_forward_params;

/** The gradient of `sum(d_o * o) + sum(d_lse * lse)`: inputs and outputs of fa3_backward().
 *
 * q, k, v, sink and options are those of the forward call, o and lse its results. Every element of
 * every gradient is written. */
typedef struct fa3_backward_params {
  size_t struct_size;  /**< set by fa3_backward_params_init() */
  fa3_options options; /**< those of the forward call */
  fa3_tensor q;        /**< as in fa3_forward_params */
  fa3_tensor k;        /**< as in fa3_forward_params */
  fa3_tensor v;        /**< as in fa3_forward_params */
  fa3_tensor o;        /**< the forward's result */
  fa3_tensor lse;      /**< the forward's result, float32 */
  fa3_tensor sink;     /**< optional, as in fa3_forward_params */
  fa3_tensor d_o;      /**< gradient of o, with its shape */
  /** Written, with q's shape, in q's dtype or in float32, for callers who add parts, as ranks do:
   * engine cpu, and engine hopper with head dims to 128, without softcap and dropout. */
  fa3_tensor dq;
  fa3_tensor dk;    /**< written, with k's shape, as dq */
  fa3_tensor dv;    /**< written, with v's shape, as dq */
  fa3_tensor dsink; /**< written, float32 (hq); with sink */
  /** Gradient of lse, with its shape; optional (zero). For losses that read the LSE, such as a
   * z-loss, and for gradients through merged splits. Rows where lse is -inf ignore it. */
  fa3_tensor d_lse;
  /** 0 or 1: dq, which is float32 then, is added to what it holds, as a ring's steps do. */
  int32_t accumulate_dq;
  int32_t accumulate_dkv; /**< 0 or 1: the same for dk and dv */
  /** Optional, as in fa3_forward_params; o is the gated output, and d_o its gradient. */
  fa3_tensor gate;
  /** Written, optional: gradient of the gate's logits, with its shape and dtype. The same bits in
   * every call. */
  fa3_tensor d_gate;
} fa3_backward_params;

/** Merges attention over disjoint key sets into attention over their union: fa3_merge().
 *
 *     lse = log(sum_i exp(lse_i)),  o = sum_i exp(lse_i - lse) o_i
 *
 * Source: FlashAttention-2 (arXiv 2307.08691), section 3.1. o and lse may be exactly one of the
 * partials: a running merge in place. Rows where every lse_i is -inf give o = 0, lse = -inf. */
typedef struct fa3_merge_params {
  size_t struct_size;     /**< set by fa3_merge_params_init() */
  fa3_tensor o_partial;   /**< (n, b, s, h, dv) float32: n partial results */
  fa3_tensor lse_partial; /**< (n, b, h, s) float32 */
  fa3_tensor o;           /**< written: (b, s, h, dv) in float32, float16 or bfloat16 */
  fa3_tensor lse;         /**< written, optional: (b, h, s) float32 */
  int32_t num_threads;    /**< as in fa3_options */
  int32_t reserved;       /**< unused */
} fa3_merge_params;

/** Writes new rows into a cache, in place: fa3_append().
 *
 * Row i of k and v becomes row `seqused[n] + i` of sequence n. page_table and batch_index say where
 * that is in the cache, as for a forward call. That call then reads `seqused[n]` plus the new rows.
 *
 * With rotary_cos and rotary_sin, the first rotary_dim columns of k's rows
 * are rotated on the way, and those of q's rows into q_rotated. Row i of a sequence is at position
 * `first_position[n] + i`. Computed in float32, rounded once.
 *
 * A cache of FA3_FLOAT8_E4M3 or FA3_FLOAT8_E5M2 takes k and v in float32, float16 or bfloat16,
 * divided by k_descale and v_descale: after a rotation, in float32, rounded once. What is beyond
 * the largest number, 448 or 57344, becomes that one; infinity becomes NaN in E4M3, and stays what
 * it is in E5M2. Such scales are of no use if rows follow that are much larger. It also takes k and
 * v of its own type, which were divided before: as they are, without scales.
 *
 * If two sequences write one row, which write wins is unspecified, per element. On a device nobody
 * checks the arrays before a call: a row that has no place in the cache is not written, and a
 * position beyond the tables is their nearest. */
typedef struct fa3_append_params {
  size_t struct_size;         /**< set by fa3_append_params_init() */
  fa3_tensor k_cache;         /**< written: (b, s, hk, d), or pages (pages, page_size, hk, d) */
  fa3_tensor v_cache;         /**< written: (b, s, hk, dv), or pages (pages, page_size, hk, dv) */
  fa3_tensor k;               /**< (b, s_new, hk, d), or (total, hk, d) if packed */
  fa3_tensor v;               /**< (b, s_new, hk, dv), or (total, hk, dv) if packed */
  fa3_tensor cu_seqlens_new;  /**< int32 (b + 1), optional: k and v are packed */
  fa3_tensor seqused;         /**< int32 (b): rows in use before the call */
  fa3_tensor page_table;      /**< optional, as in fa3_forward_params */
  fa3_tensor batch_index;     /**< optional, as in fa3_forward_params */
  fa3_tensor rotary_cos;      /**< optional: (positions, rotary_dim / 2), k's dtype or float32 */
  fa3_tensor rotary_sin;      /**< with rotary_cos, in its shape and dtype */
  fa3_tensor first_position;  /**< int32 (b), optional: seqused by default */
  fa3_tensor q;               /**< optional: (b, sq, hq, d), or (total_q, hq, d) if packed */
  fa3_tensor q_rotated;       /**< written, with q, in its shape; may be q */
  fa3_tensor cu_seqlens_q;    /**< int32 (b + 1), optional: q is packed */
  fa3_tensor k_descale;       /**< float32, optional: (1) or (b, hk); 1 by default */
  fa3_tensor v_descale;       /**< float32, optional: (1) or (b, hk); 1 by default */
  int32_t rotary_interleaved; /**< 0: pairs of columns (i, i + rotary_dim / 2); 1: (2 i, 2 i + 1) */
  /** 1: all queries of a sequence are at first_position, for calls that are neither causal nor
   * windowed. Else 0. */
  int32_t queries_share_position;
  int32_t num_threads; /**< as in fa3_options */
  int32_t reserved;    /**< unused */
} fa3_append_params;

/** Quantization, `y = e4m3(x' / descale)`: inputs and outputs of fa3_quantize().
 *
 * Source: FlashAttention-3 (arXiv 2407.08608), section 3.3: block quantization and incoherent
 * processing; centring is beside it. x' is x after these steps, each of them optional, in float32
 * (docs/numerics.md has every rounding; all engines give the same bits):
 *
 * 1. A rotary embedding of the first 2 r channels, by rotary_cos and rotary_sin.
 * 2. Centring, where mean is given: the mean of each channel over the sequence's rows is
 * subtracted. Not for q.
 * 3. The Hadamard transform: random signs of the channels, chosen by seed, then a Hadamard matrix
 *    over d. Scores of q and k that were both treated so, with one seed, are the same but for
 *    roundings.
 *
 * Numbers that are not finite count neither for scales nor for means, and become NaN. Rows that no
 * sequence uses count for nothing, and their y is 0. */
typedef struct fa3_quantize_params {
  size_t struct_size; /**< set by fa3_quantize_params_init() */
  fa3_tensor x; /**< (b, s, h, d), or (total, h, d) with cu_seqlens; float32, float16 or bfloat16 */
  fa3_tensor y; /**< written: x's shape, FA3_FLOAT8_E4M3 */
  /** Written, float32. Its shape chooses which rows share a scale: (1), (b, h) or (b, h, n), as
   * FA3_DESCALE_ROWS says; one for 64 rows is the most accurate. It is the largest |x'| / 448, at
   * least 2^-126. */
  fa3_tensor descale;
  /** Written, optional: (b, h, d) float32, as attention takes it (k_mean, v_mean), which is after
   * step 3. */
  fa3_tensor mean;
  fa3_tensor rotary_cos;      /**< optional: float32 (positions >= s, r); row i takes row i */
  fa3_tensor rotary_sin;      /**< with rotary_cos, in its shape */
  fa3_tensor cu_seqlens;      /**< optional: x is packed, as by cu_seqlens_q of fa3_options */
  fa3_tensor seqused;         /**< optional: as seqused_q of fa3_options */
  int64_t max_seqlen;         /**< as max_seqlen_q of fa3_options */
  uint64_t seed;              /**< chooses the signs */
  int32_t hadamard;           /**< 0 or 1 */
  int32_t rotary_interleaved; /**< 0: pairs of channels (c, c + r); 1: (2 c, 2 c + 1) */
  int32_t num_threads;        /**< as in fa3_options */
  int32_t engine;             /**< as in fa3_options */
  /** 0 or 1: y lies transposed, as FA3_TRANSPOSED_KEYS says, for a forward call's v_transposed. */
  int32_t transposed;
  int32_t reserved; /**< unused */
} fa3_quantize_params;

/** Writes the default into every field of a struct of `struct_size` bytes: of this version or an
 * older one. */
FA3_API void fa3_forward_params_init_sized(fa3_forward_params* params, size_t struct_size);
/** As fa3_forward_params_init_sized(). */
FA3_API void fa3_backward_params_init_sized(fa3_backward_params* params, size_t struct_size);
/** As fa3_forward_params_init_sized(). */
FA3_API void fa3_merge_params_init_sized(fa3_merge_params* params, size_t struct_size);
/** As fa3_forward_params_init_sized(). */
FA3_API void fa3_append_params_init_sized(fa3_append_params* params, size_t struct_size);
/** As fa3_forward_params_init_sized(). */
FA3_API void fa3_quantize_params_init_sized(fa3_quantize_params* params, size_t struct_size);

/** Writes the default into every field. Inline, because the size that counts is the one that the
 * caller was compiled with. */
static inline void fa3_forward_params_init(fa3_forward_params* params) {
  fa3_forward_params_init_sized(params, sizeof(fa3_forward_params));
}
/** Writes the default into every field. */
static inline void fa3_backward_params_init(fa3_backward_params* params) {
  fa3_backward_params_init_sized(params, sizeof(fa3_backward_params));
}
/** Writes the default into every field. */
static inline void fa3_merge_params_init(fa3_merge_params* params) {
  fa3_merge_params_init_sized(params, sizeof(fa3_merge_params));
}
/** Writes the default into every field. */
static inline void fa3_append_params_init(fa3_append_params* params) {
  fa3_append_params_init_sized(params, sizeof(fa3_append_params));
}
/** Writes the default into every field. */
static inline void fa3_quantize_params_init(fa3_quantize_params* params) {
  fa3_quantize_params_init_sized(params, sizeof(fa3_quantize_params));
}

/** Can this call run here? FA3_OK, or the status and, by fa3_last_error(), the reason why not. */
FA3_API fa3_status fa3_forward_supported(const fa3_forward_params* params);
/** As fa3_forward_supported(). */
FA3_API fa3_status fa3_backward_supported(const fa3_backward_params* params);
/** As fa3_forward_supported(). */
FA3_API fa3_status fa3_quantize_supported(const fa3_quantize_params* params);

/** What a call would be: see fa3_forward_query(). */
typedef struct fa3_answer {
  int32_t supported;    /**< 1: the call can run here */
  int32_t engine;       /**< an fa3_engine_id: who computes it */
  int32_t first_engine; /**< 1: no engine that runs on this device, and comes before, refused it */
  char kernel[64];      /**< what runs, in words */
  char reason[192];     /**< why it cannot run; cut off behind 191 bytes */
} fa3_answer;

/** Which engine would compute this call, and with which kernel? For callers who can express a call
 * in several ways, such as a mask as a block mask or inside a score function, to compare them.
 *
 * The data of all tensors may be null, which counts as aligned. FA3_OK also where no engine
 * supports the call; an error where its arguments contradict each other. */
FA3_API fa3_status fa3_forward_query(const fa3_forward_params* params, fa3_answer* answer);
/** As fa3_forward_query(). */
FA3_API fa3_status fa3_backward_query(const fa3_backward_params* params, fa3_answer* answer);

/** Checks the entries of cu_seqlens, seqused, page_table, batch_index and left_padding.
 *
 * FA3_OK, or an error whose message names the wrong entry. A call checks them itself in host
 * memory. On a device it does not, because it would have to wait: this function copies them after
 * the work that the stream has queued, and waits. */
FA3_API fa3_status fa3_forward_validate(const fa3_forward_params* params, void* stream);

/** Bytes of workspace that the call needs; may be 0. The workspace is on the tensors' device
 * and shares no memory with them. On a GPU it is aligned to 256 bytes; on a CPU malloc() serves. */
FA3_API fa3_status fa3_forward_workspace_size(const fa3_forward_params* params, size_t* bytes);
/** As fa3_forward_workspace_size(). */
FA3_API fa3_status fa3_backward_workspace_size(const fa3_backward_params* params, size_t* bytes);
/** As fa3_forward_workspace_size(). */
FA3_API fa3_status fa3_quantize_workspace_size(const fa3_quantize_params* params, size_t* bytes);

/** The plan in words: engine, kernel, tiles, tasks, workspace, and the reason for each choice.
 *
 * @param params    the call
 * @param text      gets at most `capacity` bytes with the final NUL
 * @param capacity  bytes of `text`
 * @param needed    gets the full size in bytes; may be NULL */
FA3_API fa3_status fa3_forward_plan_text(const fa3_forward_params* params, char* text,
                                         size_t capacity, size_t* needed);
/** As fa3_forward_plan_text(). */
FA3_API fa3_status fa3_backward_plan_text(const fa3_backward_params* params, char* text,
                                          size_t capacity, size_t* needed);

/** Attention. Source: FlashAttention-3 (arXiv 2407.08608), Algorithm 1.
 *
 * CPU calls return when the outputs are written, CUDA calls when the work is queued.
 *
 * @param params           the call
 * @param workspace        memory on the tensors' device; on a GPU aligned to 256 bytes
 * @param workspace_bytes  at least what fa3_forward_workspace_size() says
 * @param stream           a cudaStream_t for CUDA tensors; ignored for CPU tensors */
FA3_API fa3_status fa3_forward(const fa3_forward_params* params, void* workspace,
                               size_t workspace_bytes, void* stream);
/** Gradients of attention. Source: FlashAttention-2 (arXiv 2307.08691), Algorithm 2. Workspace and
 * stream are as those of fa3_forward(). */
FA3_API fa3_status fa3_backward(const fa3_backward_params* params, void* workspace,
                                size_t workspace_bytes, void* stream);
/** Merges partial results; see fa3_merge_params. The stream is as that of fa3_forward(). */
FA3_API fa3_status fa3_merge(const fa3_merge_params* params, void* stream);
/** Writes new rows into a cache; see fa3_append_params. The stream is as that of fa3_forward(). */
FA3_API fa3_status fa3_append(const fa3_append_params* params, void* stream);
/** Quantizes to FA3_FLOAT8_E4M3; see fa3_quantize_params. Workspace and stream are as those of
 * fa3_forward(). */
FA3_API fa3_status fa3_quantize(const fa3_quantize_params* params, void* workspace,
                                size_t workspace_bytes, void* stream);

/** Lends a workspace when it is known how much is needed.
 *
 * Called at most once per call, on the calling thread, only for `bytes` > 0, and only after the
 * call was accepted, before anything is queued or written. It returns at least `bytes` bytes on the
 * tensors' device, on a GPU aligned to 256, which must stay until the call's work is done: until
 * the function returns for CPU tensors, in order of the stream for CUDA tensors. NULL ends the call
 * with FA3_OUT_OF_MEMORY. It may not throw.
 *
 * @param context  what the caller passed beside the function
 * @param bytes    how many bytes are needed */
typedef void* (*fa3_workspace_allocator)(void* context, size_t bytes);
/** fa3_forward() with a workspace that the caller lends: the call plans once, where asking for the
 * size first plans twice.
 *
 * @param params    the call
 * @param allocate  lends the workspace
 * @param context   goes to `allocate`
 * @param stream    as that of fa3_forward() */
FA3_API fa3_status fa3_forward_with_allocator(const fa3_forward_params* params,
                                              fa3_workspace_allocator allocate, void* context,
                                              void* stream);
/** fa3_backward(), as fa3_forward_with_allocator(). */
FA3_API fa3_status fa3_backward_with_allocator(const fa3_backward_params* params,
                                               fa3_workspace_allocator allocate, void* context,
                                               void* stream);
/** fa3_quantize(), as fa3_forward_with_allocator(). */
FA3_API fa3_status fa3_quantize_with_allocator(const fa3_quantize_params* params,
                                               fa3_workspace_allocator allocate, void* context,
                                               void* stream);

/** Bytes of memory that the lists of the call's block mask take. 0: such a call makes none that
 * could be kept. It has no mask, its engine makes no lists, or sequences have lengths of their own,
 * of which the device makes lists in each call. */
FA3_API fa3_status fa3_forward_block_lists_size(const fa3_forward_params* params, size_t* bytes);
/** As fa3_forward_block_lists_size(). */
FA3_API fa3_status fa3_backward_block_lists_size(const fa3_backward_params* params, size_t* bytes);
/** Makes the lists of a call's block mask for calls like it: see fa3_block_lists.
 *
 * The work is queued, as that of a call. Where there is nothing to make, `data` becomes NULL, and
 * calls go on without: a caller need not ask first. Only the mask's arrays are read; the other
 * tensors may be without memory, as for fa3_forward_workspace_size(). Written while a CUDA graph is
 * captured, the lists are there when that has run.
 *
 * @param params        the call; its block_lists are not looked at
 * @param memory        on the tensors' device, aligned to 256 bytes; until the last call is done
 * @param memory_bytes  at least what fa3_forward_block_lists_size() says
 * @param stream        as that of fa3_forward()
 * @param lists         written */
FA3_API fa3_status fa3_forward_make_block_lists(const fa3_forward_params* params, void* memory,
                                                size_t memory_bytes, void* stream,
                                                fa3_block_lists* lists);
/** As fa3_forward_make_block_lists(), for backward passes: deterministic ones have others. */
FA3_API fa3_status fa3_backward_make_block_lists(const fa3_backward_params* params, void* memory,
                                                 size_t memory_bytes, void* stream,
                                                 fa3_block_lists* lists);

/** Which weights dropout keeps: `keep[((b * heads + h) * seqlen_q + i) * seqlen_k + j]` becomes 1
 * where it keeps the weight of query i and key j in query head h of sequence b, and 0 where it
 * drops it. For tests: calls of any engine never store it.
 *
 * @param dropout_p  as in fa3_options
 * @param seed       the call's seed
 * @param offset     the call's offset
 * @param batch      sequences, from the first
 * @param heads      query heads, from the first
 * @param seqlen_q   queries of a sequence, from the first
 * @param seqlen_k   keys of a sequence, from the first
 * @param keep       host memory of (batch, heads, seqlen_q, seqlen_k) bytes */
FA3_API fa3_status fa3_dropout_mask(float dropout_p, uint64_t seed, uint64_t offset, int64_t batch,
                                    int64_t heads, int64_t seqlen_q, int64_t seqlen_k,
                                    uint8_t* keep);
/** A part of the mask of fa3_dropout_mask(): `keep[((b * extents[1] + h) * extents[2] + i) *
 * extents[3] + j]` is of sequence first[0] + b, query head first[1] + h, query first[2] + i and key
 * first[3] + j. For programs that compute weights tile by tile.
 *
 * @param dropout_p  as in fa3_options
 * @param seed       the call's seed
 * @param offset     the call's offset
 * @param first      the first sequence, query head, query and key; >= 0
 * @param extents    how many of each
 * @param keep       host memory of that many bytes */
FA3_API fa3_status fa3_dropout_mask_part(float dropout_p, uint64_t seed, uint64_t offset,
                                         const int64_t first[4], const int64_t extents[4],
                                         uint8_t* keep);

/** What fa3_engine() answers. Later versions say more about engines through new functions. */
typedef struct fa3_engine_info {
  const char* name;   /**< such as "cpu"; valid until the process ends */
  int32_t available;  /**< 1 if it can run on this machine, else 0 */
  const char* detail; /**< one sentence: what it found, or why it cannot run; valid as name is */
} fa3_engine_info;
/** The engine at `index`, from 0. FA3_INVALID_ARGUMENT past the last engine. */
FA3_API fa3_status fa3_engine(int32_t index, fa3_engine_info* info);

/** Counts the process's calls from now on (1), or no longer (0), whatever `FA3_MONITOR` says.
 *
 * @param counts  0 or 1 */
FA3_API fa3_status fa3_monitor(int32_t counts);
/** What was counted so far, as JSON: an array with an object for each kind of call.
 *
 * Its names: kind, engine, call (in words), calls, timed (those whose time is known: of a GPU's
 * only finished ones, never those inside a CUDA graph), known (whether flops and bytes are), then
 * of the timed ones seconds, flops, bytes and least_seconds (what the device would take at its
 * limits, 0 if these are not known), and of the largest one workspace and memory (operands and
 * workspace) in bytes. Waits for no GPU. Text, capacity and needed are as those of
 * fa3_forward_plan_text(); calls between two questions may make the text longer.
 *
 * @param text      gets at most `capacity` bytes with the final NUL
 * @param capacity  bytes of `text`
 * @param needed    gets the full size in bytes; may be NULL */
FA3_API fa3_status fa3_monitor_text(char* text, size_t capacity, size_t* needed);

/** The library's version: MAJOR * 10000 + MINOR * 100 + PATCH. */
FA3_API int32_t fa3_version(void);
/** The calling thread's last error sentence; "" after a call that returned FA3_OK. Never NULL. */
FA3_API const char* fa3_last_error(void);
/** "invalid argument", "unsupported", ... Never NULL. */
FA3_API const char* fa3_status_name(fa3_status status);

#ifdef __cplusplus
}
#endif

#endif /* FA3_FA3_H */
