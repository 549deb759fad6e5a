// SPDX-License-Identifier: Apache-2.0
// The two products of attention for one warpgroup: scores = Q K^T, both from shared memory, and
// output = P V or output += P V with P in registers. They only issue; the caller fences, commits and
// waits.
#pragma once

#include "engine/hopper/ptx/wgmma.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper::tile {

using cuda::Element;

// Packed weights of one block: four registers of a product's A operand for each step along the keys.
template <TileLayout V>
using Weights = uint32_t[V.rows / V.mma_depth()][4];

// Q: the whole query tile; its descriptor starts at this warpgroup's rows. Descriptors by low word.
template <Element E, TileLayout Q, TileLayout K>
__device__ __forceinline__ void issue_qk(float (&scores)[K.rows / 2], uint32_t q, uint32_t k) {
#pragma unroll
  for (int step = 0; step < Q.columns / Q.mma_depth(); ++step) {
    ptx::wgmma_m64k16_ss<E>(scores, descriptor(Q, q, Q.k_major_step(step)),
                            descriptor(K, k, K.k_major_step(step)), step != 0);
  }
}

template <Element E, TileLayout V>
__device__ __forceinline__ void issue_pv(float (&output)[V.columns / 2], const Weights<V>& weights,
                                         uint32_t v, bool add = true) {
#pragma unroll
  for (int step = 0; step < V.rows / V.mma_depth(); ++step) {
    ptx::wgmma_m64k16_rs<E>(output, weights[step], descriptor(V, v, V.mn_major_step(step)),
                            step != 0 || add);
  }
}

}  // namespace fa3::hopper::tile
