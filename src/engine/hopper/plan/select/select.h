// SPDX-License-Identifier: Apache-2.0
// Which row of the catalogue does a call, and with which tiles: first a tile, by its limits, one
// estimate and some rules that have names; then the form of this tile. Pure functions. Next:
// choose_split.h (PackGQA, split-KV), plan_forward.cpp.
#pragma once

#include "core/error.h"
#include "engine/hopper/plan/forward_plan.h"
#include "engine/hopper/plan/select/serving.h"

namespace fa3::hopper {

// A row of the catalogue, and what its tiles are.
struct Choice {
  const Row* row = nullptr;
  Tiling tiling;
};

// No row: no kernel serves the call.
Choice select(const Request& r);

// select() without the kernels of few query rows (select_decode()).
Choice select_tiles(const Request& r);

// Query heads that share a tile of a kernel that never splits tiles: none but with e4m3, where they
// must share their scales.
PackGqa pack_of_whole_tiles(const Kernel& config, const Request& r);

// Whether a kernel that does nothing but decode can do a call with this tiling.
bool can_decode(const Kernel& config, const Request& r, const Tiling& tiling);

// Refuses calls with a score function and few queries, which another engine is sooner done with.
Status check_score(const Request& r, const Row& row);

// A decode kernel, and how its tiles come to CTAs. No row: none does the call.
Choice select_decode(const Request& r);

}  // namespace fa3::hopper
