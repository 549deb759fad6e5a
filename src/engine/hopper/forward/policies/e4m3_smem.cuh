// SPDX-License-Identifier: Apache-2.0
// What kernels of e4m3 operands keep in shared memory: the earlier parts of O
// (policies/promoted_sum.cuh), and the scales of the keys in stages and of work tiles.
#pragma once

#include "engine/hopper/config/e4m3_tuning.h"
#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/fp8/e4m3_scales.h"

namespace fa3::hopper {

inline constexpr int kMaxScaleGroups = 4;

template <Kernel C>
struct E4m3Smem {
  static_assert(scale_groups(C) <= kMaxScaleGroups);
  static constexpr int kEights = C.shape.head_dim_v / 16;  // of a thread's numbers of O

  static constexpr int kAlignment = stages_rows(C) ? kSmemAlignment : 16;

  // Also where rows are on their way out, which TMA swizzles by address (staged_rows.cuh).
  alignas(kAlignment) uint32_t promoted_sum[C.consumer_warps()][kEights][kWarpSize][4];
  KeyScales keys[C.shape.kv_stages][kMaxScaleGroups];  // of the stages with a K
  TileScales tiles[kWorkTileStages];
};

// By addresses in shared memory.
template <Kernel C>
__device__ __forceinline__ uint32_t key_scales(SmemAddresses<C> at, uint32_t stage) {
  return at.base + uint32_t{offsetof(SmemPlan<C>, sum.keys)} +
         stage * kMaxScaleGroups * uint32_t{sizeof(KeyScales)};
}
// The lane's first numbers of a consumer warp's earlier parts of O.
template <Kernel C>
__device__ __forceinline__ uint32_t promoted_sum(SmemAddresses<C> at, uint32_t warp,
                                                 uint32_t lane) {
  return at.base + uint32_t{offsetof(SmemPlan<C>, sum.promoted_sum)} +
         (warp * E4m3Smem<C>::kEights * kWarpSize + lane) * 4 * uint32_t{sizeof(uint32_t)};
}

}  // namespace fa3::hopper
