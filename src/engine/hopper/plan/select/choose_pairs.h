// SPDX-License-Identifier: Apache-2.0
// Causal tiles in pairs of equal length, dealt to CTAs in equal ranges (scheduler/split_kv.h).
// Next: choose_split.cpp.
#pragma once

#include "engine/hopper/plan/select/split_case.h"

namespace fa3::hopper {

// A tiling, and until when its splits are combined.
struct PairedTiles {
  Tiling tiling;
  double time = 0;
};

// The best ranges of a call's pairs; is_split() false: it has none.
PairedTiles choose_pairs(const SplitCase& s);

}  // namespace fa3::hopper
