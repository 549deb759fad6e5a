// SPDX-License-Identifier: Apache-2.0
// How K and V reach shared memory: by TMA, in boxes of some rows, or by cp.async. Next:
// select.h.
#pragma once

#include "engine/hopper/plan/forward_plan.h"

namespace fa3::hopper {

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
