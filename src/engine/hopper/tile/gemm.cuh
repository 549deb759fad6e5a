// SPDX-License-Identifier: Apache-2.0
// The two products of attention for one warpgroup: scores = Q K^T, both from shared memory, and
// output += P V with P in registers. They only issue; the caller fences, commits and waits.
#pragma once

#include "engine/hopper/ptx/wgmma.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper::tile {

// Packed weights of one block: for each 16 keys the four registers of a wgmma's A operand.
template <int Keys>
using Weights = uint32_t[Keys / kMmaK][4];

template <ForwardConfig C>
__device__ __forceinline__ void issue_qk(float (&scores)[C.block_n / 2], uint64_t q_descriptor,
                                         uint64_t k_descriptor) {
  constexpr TileLayout kQ{C.block_m, C.head_dim};
  constexpr TileLayout kK{C.block_n, C.head_dim};
#pragma unroll
  for (int step = 0; step < C.head_dim / kMmaK; ++step) {
    ptx::wgmma_m64k16_ss<C.element>(scores, advance(q_descriptor, kQ.k_major_step(step)),
                                    advance(k_descriptor, kK.k_major_step(step)), step != 0);
  }
}

template <ForwardConfig C>
__device__ __forceinline__ void issue_pv(float (&output)[C.head_dim_v / 2],
                                         const Weights<C.block_n>& weights,
                                         uint64_t v_descriptor) {
  constexpr TileLayout kV{C.block_n, C.head_dim_v};
#pragma unroll
  for (int step = 0; step < C.block_n / kMmaK; ++step) {
    ptx::wgmma_m64k16_rs<C.element>(output, weights[step],
                                    advance(v_descriptor, kV.mn_major_step(step)), 1);
  }
}

}  // namespace fa3::hopper::tile
