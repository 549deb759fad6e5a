// SPDX-License-Identifier: Apache-2.0
// How many tiles, splits and combines there are, and in which order tiles go. Next: choose_split.h,
// which decides what they are.
#pragma once

#include "engine/hopper/plan/forward_plan.h"

namespace fa3::hopper {

// For the queries of all sequences; where they are varlen, the most that there can be: each
// sequence ends within a tile, and so do the rows that none owns.
int64_t row_tiles(const Kernel& config, const ForwardCall& call, PackGqa pack);
int64_t num_tiles(const Kernel& config, const ForwardCall& call, PackGqa pack);

int64_t num_packs(const ForwardCall& call, PackGqa pack);

// A sequence has at most this many.
int64_t most_m_blocks(const Kernel& config, const ForwardCall& call, PackGqa pack);

// The tiles of sequences, which may be split.
int64_t num_split_tiles(const Kernel& config, const ForwardCall& call, PackGqa pack);

// Tiles that CTAs find by number: fixed splits' and direct ones', those that do not exist too
// (SplitKvSchedule::num_tiles()).
int64_t num_numbered_tiles(const Kernel& config, const ForwardCall& call, const Tiling& tiling);

// What the combine looks at: tiles one by one, or stream-K ranges, which open a split tile each at
// most.
int64_t num_combines(const Kernel& config, const ForwardCall& call, const Tiling& tiling);

// Room for the results of splits.
int64_t num_partials(const Kernel& config, const ForwardCall& call, const Tiling& tiling);

// The splits of a tile, if lengths are even.
int64_t most_splits(const Kernel& config, const ForwardCall& call, const Tiling& tiling);

TileOrder tile_order(const Kernel& config, const ForwardCall& call, PackGqa pack, int num_sms,
                     TilesTogether together = {});

// Without memory for it.
VarlenMetadata varlen_metadata(const Kernel& config, const ForwardCall& call, PackGqa pack,
                               int num_sms);

// The device's own form of a tiling: num_splits 0 for stream-K, 1 for whole tiles.
SplitKvSchedule split_kv_schedule(const Kernel& config, const ForwardCall& call,
                                  const Tiling& tiling);

// KV blocks of a pair of tiles; 0: they do not come in pairs. Where the number of ranges is a
// multiple of the pairs', they are rounded up to whole ranges: none crosses a pair's end.
int pair_blocks(const Kernel& config, const ForwardCall& call, const Tiling& tiling);

}  // namespace fa3::hopper
