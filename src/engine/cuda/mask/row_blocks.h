// SPDX-License-Identifier: Apache-2.0
// What a warp or warpgroup does with each key block of a tile: skip it, mask it, and which softmax
// step it takes. Plain constexpr, tested on the host. Next: mask.cuh.
#pragma once

#include "core/mask/key_blocks.h"

namespace fa3::cuda {

// Keys are counted from the tile's first visible one, blocks too; they are visited from the last
// down to 0. Edge is the mask policy.
template <class Edge>
struct alignas(16) RowBlocks {
  int count;        // those below this hold a key that some row sees; 0: there are no rows
  int masked_from;  // from here up, blocks hold keys that some row must not see on the right
  int online_from;  // from here up, the online softmax step
  Edge edge;        // which keys of the masked blocks a row sees
};

// The guarded softmax steps go by a reference taken from the first keys. Peaked scores outgrow one
// taken from too few, so long runs of blocks take at least this many keys for it. Measured: an
// extra online step costs 0.3% at 4k keys, and saves 2 to 8% there when the scores' deviation is 4.
inline constexpr int kReferenceKeys = 128;
inline constexpr int kLongRun = 48;  // blocks

inline constexpr int kAllBlocks = 1 << 30;

// Blocks to visit. Rows that see nothing still visit one, all of it masked: the first, since their
// range may lie behind the last key.
FA3_HD constexpr KeyBlocks visited_blocks(const BlockRangeOf<int>& range, int block_n) {
  KeyBlocks blocks = key_blocks(range, block_n);
  if (blocks.end <= blocks.first) blocks.first = 0, blocks.end = 1;
  return blocks;
}

// Where the online steps end. The blocks below need no mask; from here up every row that sees any
// key has seen one, and enough of them for a reference.
FA3_HD constexpr int online_from(const KeyBlocks& blocks, int first_row_end, int block_n) {
  // The first row sees a key in block masked_from, unless its keys end where that begins.
  const bool ends_before = first_row_end % block_n == 0 && blocks.masked_from > 0;
  const int seen_from = blocks.masked_from - (ends_before ? 1 : 0);
  const bool long_run = blocks.end - blocks.first >= kLongRun;
  const int reference_blocks = long_run ? (kReferenceKeys + block_n - 1) / block_n : 1;
  const int reference_from = blocks.end - reference_blocks;
  return seen_from < reference_from ? seen_from : reference_from;
}

// For rows that see `range` and visit `blocks`.
template <class Edge>
FA3_HD constexpr RowBlocks<Edge> row_blocks(const BlockRangeOf<int>& range, Edge edge, int block_n,
                                            const KeyBlocks& blocks) {
  const int first_row_end = range.free.end > 0 ? range.free.end : 0;
  return {.count = blocks.end,
          .masked_from = blocks.masked_from,
          .online_from = online_from(blocks, first_row_end, block_n),
          .edge = edge};
}

template <class Edge>
FA3_HD constexpr RowBlocks<Edge> row_blocks(const BlockRangeOf<int>& range, Edge edge,
                                            int block_n) {
  return row_blocks(range, edge, block_n, visited_blocks(range, block_n));
}

// The row blocks of a tile's split (split_kv.h), which ends after `most` blocks.
template <class Edge>
FA3_HD constexpr RowBlocks<Edge> row_blocks_of_split(const BlockRangeOf<int>& range, Edge edge,
                                                     int block_n, int most) {
  KeyBlocks blocks = visited_blocks(range, block_n);
  if (blocks.end > most) blocks.end = most;
  return row_blocks(range, edge, block_n, blocks);
}

}  // namespace fa3::cuda
