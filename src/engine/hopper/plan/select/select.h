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

// ---- How K and V reach shared memory (choose_kv_loader.cpp) ----

// Rows of a TMA box of K and V, all of which lie in one page.
int kv_box_rows(const Kernel& config, const ForwardCall& call);

// Whether a page's boxes would be so small that cp.async is faster.
bool has_small_boxes(const Kernel& config, const ForwardCall& call);

// Whether TMA fills the stages of a decode kernel's warps, with few boxes each.
bool fills_stages_by_tma(const Kernel& config, const ForwardCall& call);

// Whether strides of K and V are such that cp.async can follow them.
bool has_cp_async_rows(const ForwardCall& call);

// K and V as cp.async finds them; active: it loads them.
CpAsyncKeys cp_async_keys(const Kernel& config, const ForwardCall& call);

}  // namespace fa3::hopper
