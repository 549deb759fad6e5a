// SPDX-License-Identifier: Apache-2.0
// How many tiles a launch has, whole and cut, and in which order they go. Next: choose_tiles.h, which
// decides what they are.
#pragma once

#include "engine/hopper/launch_forward.h"
#include "engine/hopper/list_sequences.h"
#include "engine/hopper/piece/key_split.h"
#include "engine/hopper/piece/tile_order.h"

namespace fa3::hopper {

// For the queries of all sequences; where they are ragged, the most that there can be: each sequence
// ends within a tile, and so do the rows that none owns.
int64_t row_tiles(const ForwardConfig& config, const ForwardLaunch& launch, HeadPack pack);
int64_t num_tiles(const ForwardConfig& config, const ForwardLaunch& launch, HeadPack pack);

int64_t num_packs(const ForwardLaunch& launch);

// Of a sequence.
int64_t most_m_blocks(const ForwardConfig& config, const ForwardLaunch& launch);

// Tiles that may be cut, of fixed parts: those of sequences.
int64_t num_cut_tiles(const ForwardConfig& config, const ForwardLaunch& launch);

// What the merge looks at: tiles one by one, or runs, which cut a tile each at most.
int64_t num_cuts(const ForwardConfig& config, const ForwardLaunch& launch);

// Room for pieces of cut tiles.
int64_t num_slots(const ForwardConfig& config, const ForwardLaunch& launch);

// Of a tile, if lengths are even.
int64_t most_pieces(const ForwardConfig& config, const ForwardLaunch& launch);

TileOrder tile_order(const ForwardConfig& config, const ForwardLaunch& launch, int multiprocessors);

// Without memory for it.
SequenceList sequence_list(const ForwardConfig& config, const ForwardLaunch& launch,
                           int multiprocessors);

KeySplit key_split(const ForwardConfig& config, const ForwardLaunch& launch);

}  // namespace fa3::hopper
