// SPDX-License-Identifier: Apache-2.0
// Who does what in a thread block: warpgroup 0 produces (one thread issues every copy), the others
// consume (64 query rows each). Next: smem_plan.cuh.
#pragma once

#include "engine/hopper/forward_config.h"

namespace fa3::hopper::roles {

enum class Warpgroup : int { kProducer = 0, kFirstConsumer = 1 };

// Hardware barrier numbers. Consumer w waits at kTurn + w for its turn to issue products.
enum class NamedBarrier : int { kBlock = 0, kTurn = 1 };

// A turn passes between two warpgroups: the one that gives and the one that waits.
inline constexpr int kTurnThreads = 2 * kWarpgroupSize;

}  // namespace fa3::hopper::roles
