// SPDX-License-Identifier: Apache-2.0
//
// What the driver (forward.cpp) hands to a kernel (simd/): one block of query rows against one
// range of keys. Plain data, because the kernels are compiled for other instruction sets than the
// rest and must share no function with it. Next: simd/forward/attend_block.h.
#pragma once

#include <cstdint>

#include "core/mask/block_mask.h"
#include "core/mask/block_range.h"
#include "engine/cpu/kernels/dropout_job.h"

namespace fa3::cpu {

// What a driver hands to simd/vector/block_mask.h of a block mask (core/mask/block_mask.h): a query
// row of one head.
struct MaskRow {
  const int32_t* blocks = nullptr;  // the map's entries by key block
  const uint32_t* bits = nullptr;   // the row's in the first block of bits
};

inline MaskRow mask_row(const BlockMask& mask, int64_t sequence, int64_t head, int64_t query) {
  return {mask.row_of(sequence, head, query / kMaskBlock), mask.bits_of(query)};
}

// Query rows that one micro-kernel call takes. 6 rows x 4 vectors are 24 accumulators, with 4 key
// vectors and 1 broadcast 29 of the 32 AVX-512 registers; 6 x 2 are 12 + 2 + 1 of AVX2's 16.
inline constexpr int64_t kRowsPerGroup = 6;
// Where tiles multiply (simd/amx/tile.h): two tiles of 16 rows, so that each tile of keys is used
// twice.
inline constexpr int64_t kRowsPerTileGroup = 32;

struct GroupShape {
  int64_t rows;
  // Elements of a packed key tile in 32 bits: as many times more keys take the same cache.
  int64_t packing;
  // Up to this many rows of a key head, packing costs more than it saves: keys and values are read
  // in place.
  int64_t stream_rows;
};
// Also of vdpbf16ps, which was measured with as many keys as floats.
inline constexpr GroupShape kVectorGroup = {.rows = kRowsPerGroup, .packing = 1, .stream_rows = 8};
inline constexpr GroupShape kTileGroup = {
    .rows = kRowsPerTileGroup, .packing = 2, .stream_rows = 64};

// Attention of some rows over some keys, not yet normalised: per row o = sum_j w_j v_j with weights
// w_j = 2^(s_j - ref), scores s in log2 units. ref = -inf: the row saw no key so far. What the LSE
// needs is the sum of the weights; what o must be divided by is the sum of the weights that were
// multiplied, which are rounded where the product takes 16-bit factors: then an error of the
// largest weight, which rules a peaked row, cancels.
struct PartialRows {
  float* o = nullptr;        // (rows, columns)
  float* ref = nullptr;      // (rows)
  float* sum = nullptr;      // (rows): of the weights
  float* divisor = nullptr;  // (rows): of the weights as multiplied
  int64_t columns = 0;       // head_dim_v, rounded up to whole vectors of every instruction set
};

// Scratch memory of one thread; sizes are in tile_shape.h.
struct BlockBuffers {
  float* q = nullptr;           // packed query rows
  float* rows = nullptr;        // float8 rows as floats, before they are packed
  float* k = nullptr;           // packed key tile, transposed
  float* v = nullptr;           // packed value tile
  float* gathered_k = nullptr;  // a tile's rows from several pages, as they are; null: no pages
  float* gathered_v = nullptr;
  float* scores = nullptr;         // (rows of a group, block_k)
  float* p = nullptr;              // (rows of a group, block_k), in the multiplier's format
  float* sum_lanes = nullptr;      // (rows, kMaxLanes): row sums, one per vector lane
  float* divisor_lanes = nullptr;  // likewise, of rounded weights; unused where none are rounded
  float* largest = nullptr;        // (rows): the largest q.k that a row sees; null: not wanted
};

// The pages of a sequence's keys and values. Keys count from `first_row` of the first page.
struct KeyPages {
  const int32_t* numbers = nullptr;  // null: no pages
  int64_t rows = 1;                  // of a page
  int64_t first_row = 0;
  int64_t k_stride = 0, v_stride = 0;  // from one page to the next, in elements
};

// What float8 rows of one head stand for (core/quantization.h).
struct RowQuantization {
  bool is_e5m2 = false;  // else e4m3
  const float* descale = nullptr;
  int64_t block_stride = 0;
  const float* mean = nullptr;  // null: none
};

// All tiles of one key head, packed before the blocks that share them: tile n has the keys from
// n * block_k on, and lies n * stride floats behind the first.
struct PackedTiles {
  float* k = nullptr;  // null: each block packs its tiles
  float* v = nullptr;
  int64_t stride = 0;
};

// The rows of a block are the queries of one key head: row = position * group + head in the group.
struct BlockJob {
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0 = off

  // At the sequence's first row and the (first) head; strides in elements.
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t q_row_stride = 0, q_head_stride = 0;
  int64_t k_row_stride = 0, v_row_stride = 0;
  KeyPages pages;  // with pages, k and v are at page 0 and the head
  RowQuantization k_quantization,
      v_quantization;  // where they are float8; then q is packed already

  int64_t group = 1;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t padded_rows = 0;  // num_rows rounded up to whole row groups

  // Per row and per row group; padding rows repeat the last row. Begins and ends never decrease.
  const KeyRange* row_keys = nullptr;
  const BlockRange* group_keys = nullptr;
  const MaskRow* mask_rows = nullptr;  // per row likewise, besides; null: no block mask

  DropoutJob dropout;
  int64_t block_k = 0;
  PackedTiles packed;
  BlockBuffers buffers;
  PartialRows result;
};

// Logits of an output gate, placed and with strides as O.
struct GateRows {
  const void* logits = nullptr;  // null: no gate
  int dtype = 0;                 // float32, float16 or bfloat16, as kernels.h counts them
  bool per_row = false;          // one for all columns
  int64_t row_stride = 0, head_stride = 0;
};

// Partial results of the same rows over disjoint keys, to be merged, normalised and written.
struct WriteJob {
  PartialRows parts;        // the first part
  int64_t part_floats = 0;  // from one part to the next
  int64_t num_parts = 1;

  int64_t group = 1;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t head_dim_v = 0;

  void* o = nullptr;  // at the sequence's first row and the group's first head
  int64_t o_row_stride = 0, o_head_stride = 0;
  float* lse = nullptr;  // likewise; null: not wanted
  int64_t lse_row_stride = 0, lse_head_stride = 0;
  const float* sink = nullptr;  // of the group's first head; null: none
  float scale = 1.0f;           // of O: dropout's
  GateRows gate;

  // A final result over other keys, which may be o and lse; null: none. Placed and with strides as
  // these.
  const float* o_partial = nullptr;
  int64_t o_partial_row_stride = 0, o_partial_head_stride = 0;
  const float* lse_partial = nullptr;
  int64_t lse_partial_row_stride = 0, lse_partial_head_stride = 0;
};

}  // namespace fa3::cpu
