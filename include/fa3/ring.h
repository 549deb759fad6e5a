/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Context parallelism in C: attention over a sequence that is cut over the ranks of a communicator
 * of NCCL. Exact: partial results merge in float32, and the output is rounded once.
 *
 * Every rank calls with its rows of q, k and v and gets its rows of the results. Keys come from one
 * rank after the other, the next ones on the way while these are multiplied: ring attention, each
 * step a call of fa3.h. Only keys that a rank's rows see are sent. Gradients of keys go round once,
 * from rank to rank, in float32, in a fixed order.
 *
 * libnccl is found at run time. The rules of fa3.h hold here too; docs/distributed.md tells more.
 */
#ifndef FA3_RING_H
#define FA3_RING_H

#include <fa3/fa3.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Which rows of the whole sequence rank r of `world` has. */
typedef enum fa3_ring_layout {
  FA3_RING_ZIGZAG = 0, /**< of 2 world parts of each document the r-th from both ends: equal work
                          under causal */
  FA3_RING_CONTIGUOUS = 1, /**< of world parts of the stream the r-th */
  FA3_RING_BY_DOCUMENT = 2 /**< of world parts of each document the r-th */
} fa3_ring_layout;

/** The ring that a call is a part of: the same on every rank, but for the handles.
 *
 * A call does not compare what ranks pass, and ranks whose shapes or options differ may wait for
 * ever: fa3_ring_forward_agree() does. */
typedef struct fa3_ring {
  size_t struct_size; /**< set by fa3_ring_init() */
  void* comm; /**< an ncclComm_t of the tensors' device, whose calls this thread may queue */
  /** A cudaStream_t for messages, so that they run beside attention; null: that of the call. Its
   * priority should be high, and options.sm_margin leaves SMs to NCCL's kernels. */
  void* comm_stream;
  int64_t seqlen; /**< rows of the whole sequence, those of all ranks together */
  int32_t layout; /**< an fa3_ring_layout */
  /** Documents of a packed stream, whose tensors have a batch of 1: each document is a sequence of
   * its own, and the layout counts. 0: one sequence, or a batch of them. */
  int32_t num_documents;
  /** The path of libnccl. Null: what FA3_NCCL names, or the one that the program has loaded, or
   * what the loader finds. Tensors of the CPU want a library with NCCL's interface that moves host
   * memory, and says so by exporting a symbol `fa3_nccl_moves_host_memory`. */
  const char* library;
  /** Where the documents of the whole stream begin, `num_documents + 1` numbers from 0 to seqlen in
   * host memory, the same on every rank. */
  const int32_t* cu_seqlens;
} fa3_ring;

/** Writes the default into every field of a struct of `struct_size` bytes. */
FA3_API void fa3_ring_init_sized(fa3_ring* ring, size_t struct_size);
/** Writes the default into every field. */
static inline void fa3_ring_init(fa3_ring* ring) {
  fa3_ring_init_sized(ring, sizeof(fa3_ring));
}

/** Neighbouring rows of a document: the positions [begin, end) in it. */
typedef struct fa3_ring_piece {
  int64_t document; /**< its number */
  int64_t begin;    /**< the first position */
  int64_t end;      /**< the one behind the last */
} fa3_ring_piece;

/** The rows of a rank, in their order: pieces of documents in ascending order, none empty, and at
 * most two of a document. A batch of sequences is one document, 0.
 *
 * @param ring    its seqlen, layout and documents count
 * @param world   how many ranks there are
 * @param rank    which one is asked for
 * @param pieces  gets them, if there is room for all; null: only their number is asked for
 * @param count   the room in `pieces`; gets the number of pieces */
FA3_API fa3_status fa3_ring_pieces(const fa3_ring* ring, int32_t world, int32_t rank,
                                   fa3_ring_piece* pieces, int64_t* count);

/** Rows and keys, half-open, between which the mask is one band: a row sees a key if
 * low <= key - row <= high. Rows and keys count from the first one of the lists of pieces. */
typedef struct fa3_ring_rectangle {
  int64_t rows[2];  /**< begin and end */
  int64_t keys[2];  /**< begin and end */
  int64_t low;      /**< -2^60 bounds nothing */
  int64_t high;     /**< 2^60 bounds nothing */
  int64_t document; /**< that the rows and keys belong to */
  int64_t query;    /**< position of the first row in it */
  int64_t key;      /**< position of the first key in it */
} fa3_ring_rectangle;

/** Covers the pairs of rows and keys that a mask shows by the fewest rectangles, in the order of
 * the documents. fa3_ring_forward() and the Python package make their schedules of them.
 *
 * @param rows        pieces, of documents in ascending order
 * @param num_rows    how many
 * @param keys        likewise
 * @param num_keys    how many
 * @param window      keys to the left and to the right of its own position that a query sees; -1:
 * all
 * @param step        if not 0, a rectangle has rows of one piece and keys of one piece, and begins
 * a multiple of it behind their beginnings
 * @param found       gets the rectangles, if there is room for all
 * @param count       the room in `found`; gets the number of rectangles */
FA3_API fa3_status fa3_ring_rectangles(const fa3_ring_piece* rows, int64_t num_rows,
                                       const fa3_ring_piece* keys, int64_t num_keys,
                                       const int64_t window[2], int64_t step,
                                       fa3_ring_rectangle* found, int64_t* count);

/** Which rectangles become sequences of one call. */
typedef enum fa3_ring_join {
  FA3_RING_APART = 0,    /**< none: each rectangle is a call */
  FA3_RING_IN_ORDER = 1, /**< those with one mask, whose rows and keys follow the one before */
  FA3_RING_TOUCHING = 2, /**< the same, without a gap between their rows */
  FA3_RING_WHOLE = 3     /**< all with the same mask */
} fa3_ring_join;

/** A call of fa3_forward(): rows and keys, and the mask as options say it. */
typedef struct fa3_ring_call {
  int64_t rows[2];      /**< begin and end */
  int64_t keys[2];      /**< begin and end */
  int64_t window_left;  /**< as in fa3_options */
  int64_t window_right; /**< as in fa3_options */
  int64_t window_shift; /**< as in fa3_options */
  int64_t document;     /**< of the first rectangle */
  int64_t query;        /**< of the first rectangle: position of its first row in the document */
  int64_t key;          /**< of the first rectangle: position of its first key in the document */
  int64_t num_lengths;  /**< cumulative lengths of the rows, as many of the keys; 0: one sequence */
} fa3_ring_call;

/** The calls that compute rectangles.
 *
 * @param of           the rectangles
 * @param count        how many
 * @param join         an fa3_ring_join
 * @param calls        has room for `count` calls
 * @param num_calls    gets the number of calls
 * @param lengths      has room for 8 numbers a rectangle: for each call of several sequences the
 *                     cumulative lengths of its rows, then those of its keys */
FA3_API fa3_status fa3_ring_calls(const fa3_ring_rectangle* of, int64_t count, int32_t join,
                                  fa3_ring_call* calls, int64_t* num_calls, int32_t* lengths);

/** Bytes of workspace a rank that fa3_ring_forward_agree() and fa3_ring_backward_agree() need. */
#define FA3_RING_AGREE_BYTES 1024

/** Compares the arguments of all ranks, before the first call of a kind: ranks whose calls differ
 * would wait for each other for ever. All ranks call it. Each gets the same status and, if a rank
 * has wrong arguments or ranks differ, the same message, which names the rank. It waits for the
 * device.
 *
 * @param params           those of the call; pointers may be null
 * @param ring             that of the call
 * @param workspace        memory on the tensors' device, aligned to 256 bytes
 * @param workspace_bytes  at least FA3_RING_AGREE_BYTES for each rank
 * @param stream           that of the call */
FA3_API fa3_status fa3_ring_forward_agree(const fa3_forward_params* params, const fa3_ring* ring,
                                          void* workspace, size_t workspace_bytes, void* stream);
/** As fa3_ring_forward_agree(), for fa3_ring_backward(). */
FA3_API fa3_status fa3_ring_backward_agree(const fa3_backward_params* params, const fa3_ring* ring,
                                           void* workspace, size_t workspace_bytes, void* stream);

/** Bytes of workspace that this rank needs: see fa3_forward_workspace_size(). Beside the calls'
 * own it holds the keys of two steps, and the output in float32. */
FA3_API fa3_status fa3_ring_forward_workspace_size(const fa3_forward_params* params,
                                                   const fa3_ring* ring, size_t* bytes);
/** As fa3_ring_forward_workspace_size(): the keys of two steps, and float32 gradients of the keys
 * of two ranks. */
FA3_API fa3_status fa3_ring_backward_workspace_size(const fa3_backward_params* params,
                                                    const fa3_ring* ring, size_t* bytes);

/** fa3_forward() over the keys of all ranks.
 *
 * k and v have the rows of q, each row contiguous and right behind the one before. Masks count in
 * the whole sequence, or in each document: causal and windows, with softcap and sinks; batches, or
 * documents by ring.cu_seqlens, but neither other lengths nor caches, chunks, block masks, dropout,
 * score functions or FP8. Documents cannot be captured into a CUDA graph.
 *
 * CPU calls return when the outputs are written, CUDA calls when the work is queued. A call that
 * fails in the middle leaves other ranks waiting: abort the communicator.
 *
 * @param params           this rank's tensors, and the options of the whole
 * @param ring             the ring
 * @param workspace        memory on the tensors' device, aligned to 256 bytes
 * @param workspace_bytes  at least what fa3_ring_forward_workspace_size() says
 * @param stream           a cudaStream_t for CUDA tensors; ignored for CPU tensors */
FA3_API fa3_status fa3_ring_forward(const fa3_forward_params* params, const fa3_ring* ring,
                                    void* workspace, size_t workspace_bytes, void* stream);
/** fa3_backward() over the keys of all ranks, as fa3_ring_forward(). o and lse are that call's
 * results. dq, dk and dv are float32, the rows of dk and dv as those of k; nothing is added to
 * them. dsink is the share of this rank's rows: add it up over the ranks, as the gradient of any
 * parameter that all of them have. */
FA3_API fa3_status fa3_ring_backward(const fa3_backward_params* params, const fa3_ring* ring,
                                     void* workspace, size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FA3_RING_H */
