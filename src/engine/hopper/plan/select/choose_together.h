// SPDX-License-Identifier: Apache-2.0
// Which tiles read the same part of a captured tensor, and so come together. Next:
// scheduler/tiles_together.h.
#pragma once

#include "core/problem.h"
#include "engine/hopper/scheduler/tiles_together.h"

namespace fa3::hopper {

// For tiles of sequences that have one length, and no lists: these have orders of their own.
TilesTogether choose_together(const fa3_score_function& score, int64_t heads, int64_t batches);

}  // namespace fa3::hopper
