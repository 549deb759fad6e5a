// SPDX-License-Identifier: Apache-2.0
// Products of tiles for one warpgroup, 64 rows of A. They only issue; the caller fences, commits
// and waits. Operands in shared memory come by the low word of their descriptor (layout.h).
#pragma once

#include "engine/hopper/ptx/wgmma.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper::tile {

using cuda::Element;

// Packed P of one block: four registers of a product's A operand for each step along the
// keys, which are the rows of V, or its columns where it is stored transposed.
template <TileLayout V, bool Transposed = false>
using PFragment = uint32_t[(Transposed ? V.columns : V.rows) / V.mma_depth()][4];

// d = A B^T or d += A B^T, summed over the columns of both tiles: scores = Q K^T. A's descriptor
// starts at this warpgroup's rows.
template <Element E, TileLayout A, TileLayout B, int Count>
__device__ __forceinline__ void issue_abt(float (&d)[Count], uint32_t a, uint32_t b,
                                          bool add = false) {
  static_assert(Count == B.rows / 2 && A.columns == B.columns);
#pragma unroll
  for (int step = 0; step < A.columns / A.mma_depth(); ++step) {
    const uint64_t a_step = descriptor(A, a, A.k_major_step(step));
    const uint64_t b_step = descriptor(B, b, B.k_major_step(step));
    if constexpr (E == Element::kE4m3) {
      ptx::wgmma_m64k32_ss(d, a_step, b_step, step != 0 || add);
    } else {
      ptx::wgmma_m64k16_ss<E, Major::kK, Major::kK>(d, a_step, b_step, step != 0 || add);
    }
  }
}

// d = A B^T or d += A B^T, summed over the columns of B, which are e4m3: output += P V. A comes
// from registers.
template <TileLayout B, int Count>
__device__ __forceinline__ void issue_abt(float (&d)[Count], const PFragment<B, true>& a,
                                          uint32_t b, bool add) {
  static_assert(Count == B.rows / 2 && B.element_bytes == 1);
#pragma unroll
  for (int step = 0; step < B.columns / B.mma_depth(); ++step) {
    ptx::wgmma_m64k32_rs(d, a[step], descriptor(B, b, B.k_major_step(step)), step != 0 || add);
  }
}

// d = A B or d += A B, summed over the rows of B: output += P V. A comes from registers.
template <Element E, TileLayout B, int Count>
__device__ __forceinline__ void issue_ab(float (&d)[Count], const PFragment<B>& a, uint32_t b,
                                         bool add = true) {
  static_assert(Count == B.columns / 2);
#pragma unroll
  for (int step = 0; step < B.rows / B.mma_depth(); ++step) {
    ptx::wgmma_m64k16_rs<E, Major::kMn>(d, a[step], descriptor(B, b, B.mn_major_step(step)),
                                        step != 0 || add);
  }
}

// d = A B or d += A B, summed over the columns of A and the rows of B, which has as many columns as
// d: a tile, or a slab of one.
template <Element E, TileLayout A, TileLayout B, int Count>
__device__ __forceinline__ void issue_ab(float (&d)[Count], uint32_t a, uint32_t b,
                                         bool add = false) {
  static_assert(A.columns == B.rows && Count <= B.columns / 2);
#pragma unroll
  for (int step = 0; step < B.rows / B.mma_depth(); ++step) {
    ptx::wgmma_m64k16_ss<E, Major::kK, Major::kMn>(d, descriptor(A, a, A.k_major_step(step)),
                                                   descriptor(B, b, B.mn_major_step(step)),
                                                   step != 0 || add);
  }
}

}  // namespace fa3::hopper::tile
