// SPDX-License-Identifier: Apache-2.0
// How many tiles a launch has, whole and split, and in which order they go. Next: choose_split.h,
// which decides what they are.
#pragma once

#include "engine/hopper/launch/launch_forward.h"
#include "engine/hopper/scheduler/split_kv.h"
#include "engine/hopper/scheduler/tile_order.h"
#include "engine/hopper/scheduler/varlen_metadata.h"

namespace fa3::hopper {

// For the queries of all sequences; where they are varlen, the most that there can be: each
// sequence ends within a tile, and so do the rows that none owns.
int64_t row_tiles(const ForwardConfig& config, const ForwardLaunch& launch, PackGqa pack);
int64_t num_tiles(const ForwardConfig& config, const ForwardLaunch& launch, PackGqa pack);

int64_t num_packs(const ForwardLaunch& launch);

// Of a sequence.
int64_t most_m_blocks(const ForwardConfig& config, const ForwardLaunch& launch);

// Tiles that may be split, of fixed parts: those of sequences.
int64_t num_split_tiles(const ForwardConfig& config, const ForwardLaunch& launch);

// What the combine looks at: tiles one by one, or runs, which split a tile each at most.
int64_t num_combines(const ForwardConfig& config, const ForwardLaunch& launch);

// Room for splits of split tiles.
int64_t num_partials(const ForwardConfig& config, const ForwardLaunch& launch);

// Of a tile, if lengths are even.
int64_t most_splits(const ForwardConfig& config, const ForwardLaunch& launch);

TileOrder tile_order(const ForwardConfig& config, const ForwardLaunch& launch, int num_sms);

// Without memory for it.
VarlenMetadata varlen_metadata(const ForwardConfig& config, const ForwardLaunch& launch,
                               int num_sms);

SplitKvSchedule split_kv_schedule(const ForwardConfig& config, const ForwardLaunch& launch);

}  // namespace fa3::hopper
