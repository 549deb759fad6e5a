/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434) over caches whose rows
 * fa3_forward() cannot describe: FP8 rows with their scales, selected rows (top-k), two caches.
 *
 * A row of the cache serves all query heads. K is its latent channels and behind them its rope
 * channels, V the first 512 channels of K: queries are absorbed, and d is 576 or 512. A 16-bit
 * cache of such rows also goes to fa3_forward(), with v a view of k's first 512 channels.
 *
 * Engine cpu computes all of these calls, engine reference all but gradients. Engine hopper
 * computes fa3_mla_forward() for LATENT rows of 16 bits and, with bfloat16 queries, for GROUP128
 * rows, without extra_cache; and fa3_mla_backward() in 16 bits. It refuses
 * others. All engines for GPUs append and gather all rows; a position beyond the tables
 * is their last there. The rules of fa3.h hold here too. On a device nobody checks slots, indices
 * and lengths before a call.
 */
#ifndef FA3_MLA_H
#define FA3_MLA_H

#include <fa3/fa3.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What the rows of a latent cache are made of. P is the number of rows of a page, t a row of it.
 */
typedef enum fa3_mla_rows {
  /** By the type and the last extent: 576 or 512 channels of 16 or 32 bits are LATENT, 576 or 512
   * of FA3_FLOAT8_E4M3 TENSOR; 656 of them GROUP128, 584 V4 and 644 TOKEN. */
  FA3_MLA_ROWS_AUTO = 0,
  FA3_MLA_ROWS_LATENT = 1, /**< channels as they are: float32, float16 or bfloat16 */
  /** 656 bytes: 512 e4m3, 4 float32 scales of 128 channels each, 64 bfloat16. FlashMLA's and vLLM's
   * fp8_ds_mla. With queries of 512 channels the last 128 bytes are not read. */
  FA3_MLA_ROWS_GROUP128 = 2,
  /** DeepSeek V4: d is 512. A page is P rows of 576 bytes, 448 e4m3 and 64 bfloat16, and then P
   * times 8 bytes: 7 scales of 64 channels each as e8m0, which is 2^(byte - 127), and a 0. The
   * tensor has 584 for its last extent and for the stride of its rows; pages begin where its first
   * stride says, at multiples of 16 bytes. */
  FA3_MLA_ROWS_V4 = 3,
  FA3_MLA_ROWS_TENSOR = 4, /**< 512 e4m3, and 64 e4m3 unless there is no rope; `descale` */
  /** 644 bytes a token: a page is P rows of 640 bytes, 512 e4m3 and 64 bfloat16, and then P float32
   * scales. Strides as for V4, with 644. */
  FA3_MLA_ROWS_TOKEN = 5
} fa3_mla_rows;

/** A latent cache in pages. This struct never grows. */
typedef struct fa3_mla_cache {
  /** (pages, P, row) or (pages, P, 1, row); FA3_FLOAT8_E4M3 for rows of bytes, whatever they hold.
   */
  fa3_tensor rows;
  /** (pages, P, 64) or (pages, P, 1, 64), optional: the rope channels of LATENT and TENSOR rows
   * where `rows` has 512 channels alone. */
  fa3_tensor rope;
  /** float32 (1), or (2) for latent and rope channels: what e4m3 numbers of TENSOR rows are
   * multiplied by, finite and > 0; those in host memory are checked. None for other rows. */
  fa3_tensor descale;
  int32_t format;   /**< an fa3_mla_rows */
  int32_t reserved; /**< unused */
} fa3_mla_cache;

/** Attention of absorbed queries to latent rows: fa3_mla_forward().
 *
 * Dense calls have page_table and seqused_k: row j of sequence n is row `j % P` of page
 * `page_table[n][j / P]`. Sparse calls have indices: each query has its own keys, row `s % P` of
 * page `s / P` for each index s. Indices that name no row of the cache are skipped; an index that
 * stands twice counts twice. Rows that no valid entry names are never read.
 *
 * A query without keys gives o = 0. */
typedef struct fa3_mla_forward_params {
  size_t struct_size; /**< set by fa3_mla_forward_params_init() */
  /** (b, sq, h, d), or (total_q, h, d): packed with cu_seqlens_q if dense, else one query a row. 1
   * to 128 heads; float32, float16 or bfloat16. */
  fa3_tensor q;
  fa3_tensor q_rope;            /**< optional: the last 64 channels of q, which then has 64 fewer */
  fa3_mla_cache cache;          /**< the rows */
  fa3_tensor page_table;        /**< int32 (b, max_pages): dense */
  fa3_tensor seqused_k;         /**< int32 (b), with page_table: rows of a sequence */
  fa3_tensor cu_seqlens_q;      /**< int32 (b + 1), with a packed q and page_table */
  fa3_tensor indices;           /**< int32 (b, sq, k) or (total_q, k): sparse */
  fa3_tensor index_count;       /**< int32 (b), (b, sq) or (total_q), optional: as many as count */
  fa3_mla_cache extra_cache;    /**< optional, with extra_indices: more keys of the same softmax */
  fa3_tensor extra_indices;     /**< as indices, into extra_cache; any number a query */
  fa3_tensor extra_index_count; /**< as index_count */
  fa3_tensor sink; /**< float32 (h), optional: one more logit of each head, without a value */
  fa3_tensor o;    /**< written: (b, sq, h, 512) or (total_q, h, 512), in q's dtype or float32 */
  fa3_tensor lse;  /**< written, optional: (b, h, sq) or (h, total_q), float32, natural log */
  fa3_tensor max; /**< written, optional, in lse's shape: largest scaled score; -inf without keys */
  int64_t max_seqlen_q;    /**< as in fa3_options */
  float scale;             /**< finite and > 0, or FA3_SCALE_AUTO: d^-0.5 */
  int32_t causal;          /**< 0 or 1, bottom right; 0 with indices, which say what a query sees */
  int32_t lse_with_sink;   /**< 1, the default: the LSE counts the sink; 0: O alone does */
  int32_t empty_lse;       /**< the LSE without keys and sink: 0, the default: -inf; 1: +inf */
  int32_t num_splits;      /**< as in fa3_forward_params; CPU engines split no keys here */
  int32_t batch_invariant; /**< as in fa3_options */
  int32_t num_threads;     /**< as in fa3_options */
  int32_t engine;          /**< as in fa3_options */
} fa3_mla_forward_params;

/** How scales of rows that hold their own are chosen; amax is the largest absolute value. */
typedef enum fa3_mla_scaling {
  /** The smallest power of two that is >= max(amax / 448, 1e-4), as FlashMLA's quantizer. */
  FA3_MLA_SCALING_POW2 = 0,
  /** max(amax / 448, 2^-126), as vLLM's concat_and_cache_mla. Not for V4. */
  FA3_MLA_SCALING_EXACT = 1,
  /** The smallest power of two that is >= max(amax, 1e-4) / 448, as vLLM's writer of V4 rows. */
  FA3_MLA_SCALING_POW2_SMALL = 2
} fa3_mla_scaling;

/** Writes rows into a latent cache, in place: fa3_mla_append().
 *
 * Computed in float32, rounded once, e4m3 saturating: numbers beyond 448, infinity included, become
 * 448, and NaN becomes 7f. With a scale of its own infinity makes that scale infinite.
 *
 * If two rows have one slot, which row wins is unspecified, per element. */
typedef struct fa3_mla_append_params {
  size_t struct_size;    /**< set by fa3_mla_append_params_init() */
  fa3_mla_cache cache;   /**< written */
  fa3_tensor c_kv;       /**< (n, 512), of V4 rows (n, 448): float32, float16 or bfloat16 */
  fa3_tensor k_pe;       /**< (n, 64), c_kv's dtype; none: rope channels that there are become 0 */
  fa3_tensor slots;      /**< int32 (n): page * P + row; one outside is not written */
  fa3_tensor rotary_cos; /**< optional: (positions, pairs <= 32), float32 or k_pe's dtype */
  fa3_tensor rotary_sin; /**< with rotary_cos, in its shape and dtype */
  fa3_tensor positions;  /**< int32 (n), with rotary_cos */
  fa3_tensor q_pe;       /**< optional, with rotary_cos: (n, h, 64), c_kv's dtype */
  fa3_tensor q_pe_rotated;    /**< written, with q_pe, in its shape and dtype; may be q_pe */
  int32_t rotary_interleaved; /**< 0: pairs of channels (i, i + pairs); 1: (2 i, 2 i + 1) */
  int32_t scaling;            /**< an fa3_mla_scaling */
  int32_t num_threads;        /**< as in fa3_options */
  int32_t reserved;           /**< unused */
} fa3_mla_append_params;

/** Reads rows of a latent cache as the numbers that they stand for: fa3_mla_gather(). */
typedef struct fa3_mla_gather_params {
  size_t struct_size;  /**< set by fa3_mla_gather_params_init() */
  fa3_mla_cache cache; /**< read */
  fa3_tensor slots;    /**< int32 (n): page * P + row; one outside gives zeros */
  fa3_tensor o;        /**< written: (n, 576 or 512), float32, float16 or bfloat16 */
  int32_t num_threads; /**< as in fa3_options */
  int32_t reserved;    /**< unused */
} fa3_mla_gather_params;

/** Gradients of fa3_mla_forward() with indices and LATENT rows of 16 or 32 bits:
 * fa3_mla_backward(). An index that stands twice adds twice; rows that no valid index names get 0.
 * Engine hopper: q, cache, o and d_o of one type of 16 bits. */
typedef struct fa3_mla_backward_params {
  size_t struct_size;     /**< set by fa3_mla_backward_params_init() */
  fa3_tensor q;           /**< of the forward call, all channels in one tensor */
  fa3_tensor cache;       /**< its rows: (pages, P, 576 or 512), or (pages, P, 1, ...) */
  fa3_tensor indices;     /**< as in the forward call */
  fa3_tensor index_count; /**< as in the forward call */
  fa3_tensor sink;        /**< as in the forward call */
  fa3_tensor o;           /**< its output */
  fa3_tensor lse;         /**< its LSE */
  fa3_tensor d_o;         /**< gradient of o, in its shape; float32, float16 or bfloat16 */
  fa3_tensor d_lse;       /**< optional: gradient of lse, in its shape, float32 */
  fa3_tensor dq;          /**< written: in q's shape, q's dtype or float32 */
  fa3_tensor d_cache;     /**< written: in cache's shape, its dtype or float32; sums are float32 */
  fa3_tensor dsink;       /**< written, optional, with sink: float32 (h) */
  float scale;            /**< as in the forward call */
  int32_t lse_with_sink;  /**< as in the forward call: whether lse counts the sink */
  int32_t deterministic;  /**< as in fa3_backward_params; engine cpu always is */
  int32_t num_threads;    /**< as in fa3_options */
  int32_t engine;         /**< as in fa3_options */
  int32_t reserved;       /**< unused */
} fa3_mla_backward_params;

/** Writes the default into every field of a struct of `struct_size` bytes. */
FA3_API void fa3_mla_forward_params_init_sized(fa3_mla_forward_params* params, size_t struct_size);
/** As fa3_mla_forward_params_init_sized(). */
FA3_API void fa3_mla_append_params_init_sized(fa3_mla_append_params* params, size_t struct_size);
/** As fa3_mla_forward_params_init_sized(). */
FA3_API void fa3_mla_gather_params_init_sized(fa3_mla_gather_params* params, size_t struct_size);
/** As fa3_mla_forward_params_init_sized(). */
FA3_API void fa3_mla_backward_params_init_sized(fa3_mla_backward_params* params,
                                                size_t struct_size);
/** Writes the default into every field. */
static inline void fa3_mla_forward_params_init(fa3_mla_forward_params* params) {
  fa3_mla_forward_params_init_sized(params, sizeof(fa3_mla_forward_params));
}
/** Writes the default into every field. */
static inline void fa3_mla_append_params_init(fa3_mla_append_params* params) {
  fa3_mla_append_params_init_sized(params, sizeof(fa3_mla_append_params));
}
/** Writes the default into every field. */
static inline void fa3_mla_gather_params_init(fa3_mla_gather_params* params) {
  fa3_mla_gather_params_init_sized(params, sizeof(fa3_mla_gather_params));
}
/** Writes the default into every field. */
static inline void fa3_mla_backward_params_init(fa3_mla_backward_params* params) {
  fa3_mla_backward_params_init_sized(params, sizeof(fa3_mla_backward_params));
}

/** As fa3_forward_supported(). */
FA3_API fa3_status fa3_mla_forward_supported(const fa3_mla_forward_params* params);
/** As fa3_forward_workspace_size(). */
FA3_API fa3_status fa3_mla_forward_workspace_size(const fa3_mla_forward_params* params,
                                                  size_t* bytes);
/** As fa3_forward_plan_text(). */
FA3_API fa3_status fa3_mla_forward_plan_text(const fa3_mla_forward_params* params, char* text,
                                             size_t capacity, size_t* needed);
/** Attention to latent rows; see fa3_mla_forward_params. Workspace and stream are as those of
 * fa3_forward(). */
FA3_API fa3_status fa3_mla_forward(const fa3_mla_forward_params* params, void* workspace,
                                   size_t workspace_bytes, void* stream);
/** fa3_mla_forward(), as fa3_forward_with_allocator(). */
FA3_API fa3_status fa3_mla_forward_with_allocator(const fa3_mla_forward_params* params,
                                                  fa3_workspace_allocator allocate, void* context,
                                                  void* stream);
/** Writes rows; see fa3_mla_append_params. The stream is as that of fa3_forward(). */
FA3_API fa3_status fa3_mla_append(const fa3_mla_append_params* params, void* stream);
/** Reads rows; see fa3_mla_gather_params. The stream is as that of fa3_forward(). */
FA3_API fa3_status fa3_mla_gather(const fa3_mla_gather_params* params, void* stream);
/** As fa3_backward_supported(). */
FA3_API fa3_status fa3_mla_backward_supported(const fa3_mla_backward_params* params);
/** As fa3_backward_workspace_size(). */
FA3_API fa3_status fa3_mla_backward_workspace_size(const fa3_mla_backward_params* params,
                                                   size_t* bytes);
/** As fa3_backward_plan_text(). */
FA3_API fa3_status fa3_mla_backward_plan_text(const fa3_mla_backward_params* params, char* text,
                                              size_t capacity, size_t* needed);
/** Gradients of selected rows; see fa3_mla_backward_params. Workspace and stream are as those of
 * fa3_backward(). */
FA3_API fa3_status fa3_mla_backward(const fa3_mla_backward_params* params, void* workspace,
                                    size_t workspace_bytes, void* stream);
/** fa3_mla_backward(), as fa3_backward_with_allocator(). */
FA3_API fa3_status fa3_mla_backward_with_allocator(const fa3_mla_backward_params* params,
                                                   fa3_workspace_allocator allocate, void* context,
                                                   void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FA3_MLA_H */
