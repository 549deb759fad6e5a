// SPDX-License-Identifier: Apache-2.0
// What a launch's tiles are: which heads share one, and whether its keys are cut. Next: choose_row.cpp,
// which chooses the kernel with it.
#pragma once

#include "engine/hopper/launch_forward.h"

namespace fa3::hopper {

// As many query heads of a group of this size as can share a tile; tiles that are cut take more.
HeadPack most_packed(int64_t heads_per_kv_head, bool cut = false);

// Which query heads of a group share a tile: they read the same keys.
HeadPack choose_pack(const ForwardConfig& config, const ForwardLaunch& launch);

// How the keys are cut for so many multiprocessors, if at all; num_splits as in fa3.h. Sets the pack
// too: cut tiles hold as many heads as they can.
void choose_cut(const ForwardConfig& config, int num_splits, int multiprocessors,
                ForwardLaunch* launch);

// Whether all tiles of ragged sequences, in a kernel that finds them itself, have a thread block at once. Then
// no list of sequences is made: none has to go first. Rows that no sequence owns come last.
bool has_all_tiles_at_once(const ForwardConfig& config, const ForwardLaunch& launch,
                           int multiprocessors);

// Rows of K and V that a copy takes from one page.
int page_box_rows(const ForwardConfig& config, const ForwardLaunch& launch);

// Whether a page's boxes would be so small that copies by threads are faster.
bool has_small_boxes(const ForwardConfig& config, const ForwardLaunch& launch);

// Whether few enough rows, of few enough pieces, are merged that one thread block a tile does it sooner
// than a kernel of its own.
bool merges_soon(const ForwardConfig& config, const ForwardLaunch& launch);

}  // namespace fa3::hopper
