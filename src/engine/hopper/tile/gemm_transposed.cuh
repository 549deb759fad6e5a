// SPDX-License-Identifier: Apache-2.0
// Products of tiles for one warpgroup whose left operand is read transposed from shared memory, 64
// of its columns. As in gemm.cuh they only issue.
#pragma once

#include "engine/hopper/ptx/wgmma.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper::tile {

// d += A^T B, summed over the rows of both tiles. A's descriptor starts at 64 of its columns.
template <cuda::Element E, TileLayout A, TileLayout B, int Count>
__device__ __forceinline__ void issue_atb(float (&d)[Count], uint32_t a, uint32_t b) {
  static_assert(A.rows == B.rows && Count == B.columns / 2);
#pragma unroll
  for (int step = 0; step < B.rows / B.mma_depth(); ++step) {
    ptx::wgmma_m64k16_ss<E, Major::kMn, Major::kMn>(d, descriptor(A, a, A.mn_major_step(step)),
                                                    descriptor(B, b, B.mn_major_step(step)), true);
  }
}

// d = A^T B^T, summed over the rows of A, a slab of 64 columns, and the columns of B.
template <cuda::Element E, TileLayout A, TileLayout B, int Count>
__device__ __forceinline__ void issue_atbt(float (&d)[Count], uint32_t a, uint32_t b) {
  static_assert(A.rows == B.columns && Count == B.rows / 2);
#pragma unroll
  for (int step = 0; step < A.rows / A.mma_depth(); ++step) {
    ptx::wgmma_m64k16_ss<E, Major::kMn, Major::kK>(d, descriptor(A, a, A.mn_major_step(step)),
                                                   descriptor(B, b, B.k_major_step(step)),
                                                   step != 0);
  }
}

}  // namespace fa3::hopper::tile
