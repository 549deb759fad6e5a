// SPDX-License-Identifier: Apache-2.0
// Which tile is next, and which key blocks it needs. Pure functions of plain numbers, so the host
// tests that every tile comes once and that causal work is balanced. Next: work_item.cuh.
#pragma once

#include "engine/hopper/forward_config.h"

namespace fa3::hopper {

struct TileIndex {
  int m_block;
  int head;  // of O; a pack of them where query heads are packed
  int batch;
};

// Order of tiles: head by head, so that the query tiles in work share keys and values in the L2
// cache, and within a head from the last query block to the first: causal work comes longest first.
// The last heads of all go together, longest first: enough short tiles must be left at the very end
// to even out the multiprocessors.
struct TileOrder {
  int num_m_blocks;
  int num_heads;
  int num_batches;
  int tail_heads;

  FA3_HD constexpr TileIndex tile(int ticket) const {
    const int heads_before_tail = num_heads * num_batches - tail_heads;
    const int in_tail = ticket - heads_before_tail * num_m_blocks;
    const bool tail = in_tail >= 0;
    const int head = tail ? heads_before_tail + in_tail % tail_heads : ticket / num_m_blocks;
    const int from_last = tail ? in_tail / tail_heads : ticket % num_m_blocks;
    return {num_m_blocks - 1 - from_last, head % num_heads, head / num_heads};
  }

  FA3_HD constexpr int num_tiles() const { return num_m_blocks * num_heads * num_batches; }
};

// Key blocks of some query rows, visited from count - 1 down to 0. Read as one 16-byte word.
struct alignas(16) KeyBlocks {
  int count;          // at least 1: rows that see nothing still visit one block, fully masked
  int masked_from;    // from here up, blocks hold keys that some row must not see
  int ordinary_from;  // from here up, the ordinary softmax step: masked blocks, the first block, and
                      // all blocks until every row that will ever see a key has seen one
  int first_limit;    // the i-th query sees the keys below first_limit + i, of those there are
};

FA3_HD constexpr int clamp(int value, int low, int high) {
  return value < low ? low : value > high ? high : value;
}

// Keys visible to a query row: [0, limit). Causal masks are aligned to the bottom right.
FA3_HD constexpr int key_limit(int q_row, int seqlen_q, int seqlen_k, bool causal) {
  return causal ? clamp(q_row + 1 + seqlen_k - seqlen_q, 0, seqlen_k) : seqlen_k;
}

// The guarded softmax steps go by a reference taken from the first keys. Peaked scores outgrow one
// taken from too few, so long runs of blocks take at least this many keys for it. Measured: an extra
// ordinary step costs 0.3% at 4k keys, and saves 2 to 8% there when the scores' deviation is 4.
inline constexpr int kReferenceKeys = 128;
inline constexpr int kLongRun = 48;  // blocks

FA3_HD constexpr KeyBlocks key_blocks(int first_row, int num_rows, int block_n, int seqlen_q,
                                      int seqlen_k, bool causal) {
  const int last_row = clamp(first_row + num_rows, 0, seqlen_q) - 1;
  const int fewest_keys = key_limit(first_row, seqlen_q, seqlen_k, causal);
  const int most_keys = key_limit(last_row, seqlen_q, seqlen_k, causal);
  const int free_blocks = fewest_keys / block_n;
  const int all_blocks = (most_keys + block_n - 1) / block_n;
  const int count = all_blocks > 0 ? all_blocks : 1;
  // The first row sees a key above free_blocks, unless its limit is where they end.
  const bool first_row_waits = fewest_keys % block_n == 0 && free_blocks > 0;
  const int seen_from = free_blocks - (first_row_waits ? 1 : 0);
  const int reference_blocks = count >= kLongRun ? (kReferenceKeys + block_n - 1) / block_n : 1;
  const int reference_from = count - reference_blocks;
  const int first_limit = causal ? first_row + 1 + seqlen_k - seqlen_q : seqlen_k;
  return {count, free_blocks, seen_from < reference_from ? seen_from : reference_from, first_limit};
}

}  // namespace fa3::hopper
