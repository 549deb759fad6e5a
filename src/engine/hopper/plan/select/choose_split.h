// SPDX-License-Identifier: Apache-2.0
// What tiles are: which query heads share one, whether its keys are split, and which scheduler has
// it. Next: select.cpp, which chooses the kernel with it.
#pragma once

#include "engine/hopper/plan/forward_plan.h"
#include "engine/hopper/plan/select/split_case.h"

namespace fa3::hopper {

// Kernels for decoding look up the sequences of a call at once, a lane of a warp each. Up to
// kFewWaves waves of whole tiles end sooner there than longest first in others.
inline constexpr int64_t kFewSequences = 32, kFewWaves = 2;

// As many query heads of a group of this size as can share a tile; tiles that are split take more.
PackGqa most_packed(int64_t heads_per_kv_head, bool split = false);

// Which query heads of a group share a tile: they read the same keys.
PackGqa choose_pack(const Kernel& config, const ForwardCall& call);

// The pack of tiles that are split, or whole in a kernel for decoding: as many heads as save tiles,
// or as one tile of such a kernel holds. The others are packs of their own, whose ranges lie side
// by side: they read the same keys at the same time, as tiles in a row would not.
PackGqa choose_split_pack(const Kernel& config, const ForwardCall& call, int num_sms);

// Tiles that stay whole, with this pack and a scheduler for them on this many SMs.
Tiling whole_tiles(const Kernel& config, const ForwardCall& call, PackGqa pack, int num_sms);

// Tiles that are split for this many SMs, where that pays or is asked for (num_splits as in fa3.h);
// else is_split() is false. They hold as many heads as they can.
Tiling choose_split(const Kernel& config, const ForwardCall& call, int num_splits, int num_sms);

// choose_split(), or whole tiles.
Tiling choose_tiling(const Kernel& config, const ForwardCall& call, int num_splits, int num_sms);

// Whether all tiles of varlen sequences have a CTA at once, in a kernel that finds them itself.
// Then no list of tiles is made: none has to go first. Rows that no sequence owns come last.
bool fits_one_wave(const Kernel& config, const ForwardCall& call, PackGqa pack, int num_sms);

// Whether few enough rows, of few enough splits, are combined that one CTA a tile does it sooner
// than a kernel of its own.
bool combines_in_kernel(const Kernel& config, const ForwardCall& call, const Tiling& tiling);

// ---- Causal tiles in pairs of equal length, dealt to CTAs in equal ranges ----

// A tiling, and until when its splits are combined.
struct PairedTiles {
  Tiling tiling;
  double time = 0;
};

// The best ranges of a call's pairs; is_split() false: it has none.
PairedTiles choose_pairs(const SplitCase& s);

}  // namespace fa3::hopper
