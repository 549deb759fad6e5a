// SPDX-License-Identifier: Apache-2.0
// What the producer tells the consumers to do next, one record in a small shared-memory ring. A
// record outlives its tile's last product: the epilogue reads it again, and a consumer warp that met
// numbers the guarded softmax cannot hold leaves its mark in it before letting go.
#pragma once

#include "engine/hopper/piece/pipeline.cuh"
#include "engine/hopper/piece/schedule.h"

namespace fa3::hopper {

// Two tiles are in work at once (one finishes under the next one's first products), one record is
// being written ahead; rounded up to a power of two.
inline constexpr int kItemSlots = 4;

inline constexpr int kMaxConsumers = 3;

enum class ItemKind : int {
  kTile,   // attend
  kDrain,  // finish what is in flight, see every store through, let go of every record
  kDone,   // leave
};

struct WorkItem {
  ItemKind kind;
  int num_blocks;  // key blocks loaded
  int tile;        // number of the tile, as drawn
  TileIndex index;
  KeyBlocks mine[kMaxConsumers];  // of these, those that warpgroup w has use for (none: count 0)
  unsigned storing_warps;         // bit w: consumer warp w writes its rows
  unsigned marked_warps;  // bit w: consumer warp w wants its rows done again, the ordinary way
};

// The tiles to be done again by this thread block, as a list through global memory.
struct RedoEntry {
  int next_tile;
  unsigned warps;
};

using ItemCursor = RingCursor<kItemSlots>;

}  // namespace fa3::hopper
