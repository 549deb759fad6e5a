// SPDX-License-Identifier: Apache-2.0
// Which tile is next. Pure functions of plain numbers, so the host tests that every tile comes once
// and that causal work is balanced. Next: row_blocks.h.
#pragma once

#include "core/macros.h"

namespace fa3::cuda {

struct TileIndex {
  int m_block;
  int pack;  // of query heads
  int batch;
};

// Order of tiles: head by head, so that concurrent query tiles share keys and values in the L2
// cache, and within a head from the last query block to the first, since causal tiles should come
// longest first. The last heads (the tail) go together, longest first: enough short tiles must be
// left at the very end to even out the SMs.
// Number: int, or what divides faster (divisor.h).
template <class Number>
struct TileOrderOf {
  Number num_m_blocks;
  Number num_packs;
  int num_batches;
  Number tail_heads;

  FA3_HD constexpr TileIndex tile(int ticket) const {
    const int heads_before_tail = num_packs * num_batches - tail_heads;
    const int in_tail = ticket - heads_before_tail * num_m_blocks;
    const bool tail = in_tail >= 0;
    const int pack = tail ? heads_before_tail + in_tail % tail_heads : ticket / num_m_blocks;
    const int from_last = tail ? in_tail / tail_heads : ticket % num_m_blocks;
    return {num_m_blocks - 1 - from_last, pack % num_packs, pack / num_packs};
  }

  FA3_HD constexpr int num_tiles() const { return num_m_blocks * num_packs * num_batches; }
};

using TileOrder = TileOrderOf<int>;

}  // namespace fa3::cuda
