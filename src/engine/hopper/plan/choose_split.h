// SPDX-License-Identifier: Apache-2.0
// What a launch's tiles are: which heads share one, and whether its keys are split. Next:
// select_kernel.cpp, which chooses the kernel with it.
#pragma once

#include "engine/hopper/launch/launch_forward.h"

namespace fa3::hopper {

// As many query heads of a group of this size as can share a tile; tiles that are split take more.
PackGqa most_packed(int64_t heads_per_kv_head, bool split = false);

// Which query heads of a group share a tile: they read the same keys.
PackGqa choose_pack(const ForwardConfig& config, const ForwardLaunch& launch);

// How the keys are split for so many SMs, if at all; num_splits as in fa3.h. Sets the pack
// too: split tiles hold as many heads as they can.
void choose_split(const ForwardConfig& config, int num_splits, int num_sms, ForwardLaunch* launch);

// Whether all tiles of varlen sequences, in a kernel that finds them itself, have a CTA at once.
// Then no list of sequences is made: none has to go first. Rows that no sequence owns come last.
bool fits_one_wave(const ForwardConfig& config, const ForwardLaunch& launch, int num_sms);

// Rows of K and V that a copy takes from one page.
int page_box_rows(const ForwardConfig& config, const ForwardLaunch& launch);

// Whether a page's boxes would be so small that copies by threads are faster.
bool has_small_boxes(const ForwardConfig& config, const ForwardLaunch& launch);

// Whether few enough rows, of few enough splits, are combined that one CTA a tile does it sooner
// than a kernel of its own.
bool combines_in_kernel(const ForwardConfig& config, const ForwardLaunch& launch);

}  // namespace fa3::hopper
