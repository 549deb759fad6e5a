// SPDX-License-Identifier: Apache-2.0
// Roles in a CTA: warpgroup 0 produces (one thread or one warp issues TMA, issuer.cuh), the others
// consume (64 query rows each). Next: smem_plan.cuh.
#pragma once

#include "engine/hopper/config/sm90.h"
#include "engine/hopper/ptx/lanes.cuh"

namespace fa3::hopper {

enum class Warpgroup : int { kProducer = 0, kFirstConsumer = 1 };

// The other warps of the producer's warpgroup, which dequantize keys, copy them, or transpose
// values.
inline constexpr int kHelperWarps = kWarpsPerWarpgroup - 1;

// Hardware barrier numbers; 0 is __syncthreads(). Consumer w of up to three waits at kPingPong + w
// for its turn to issue products, and at kQueries + w for its warps' rescaled rows of Q, or, in
// kernels that do not rescale Q, at kRows + w to look at its rows together. Helper warps meet at
// kHelpers.
enum class NamedBarrier : int {
  kPingPong = 1,
  kCombine = 4,
  kQueries = 5,
  kRows = kQueries,
  kHelpers = 8
};

// A turn passes between two warpgroups: one passes it, one waits.
inline constexpr int kPingPongThreads = 2 * kWarpgroupSize;

// Whether this lane arrives for its warp.
__device__ __forceinline__ bool leads_warp() {
  return ptx::kEveryLaneArrives || ptx::lane() == 0;
}

// Tells the compiler that all lanes of the warp agree on a value, so that it may live in the
// uniform registers that matrix descriptors and addresses are read from.
__device__ __forceinline__ uint32_t uniform(uint32_t x) {
  return __shfl_sync(0xffffffff, x, 0);
}

// uniform() by a reduction, which leaves its result in a uniform register: what follows from it
// is uniform arithmetic. Measured: of K's and V's stage in every step 0.5 to 2.4% faster than
// shuffled operands; of Q's slower.
__device__ __forceinline__ uint32_t uniform_stage(uint32_t stage) {
  return __reduce_or_sync(0xffffffff, stage);
}

}  // namespace fa3::hopper
