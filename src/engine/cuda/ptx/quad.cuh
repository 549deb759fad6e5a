// SPDX-License-Identifier: Apache-2.0
// A 4 by 4 transpose of registers among the four lanes of a quad: lane i gives its register j to
// lane j, which keeps it as register i. Two exchanges, with the neighbour and with the pair
// opposite.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/fragment.h"

namespace fa3::cuda {

// Lanes `Distance` apart trade `high` of the lower lane for `low` of the upper one.
template <int Distance>
__device__ __forceinline__ void trade(uint32_t& low, uint32_t& high, bool upper) {
  const uint32_t received = __shfl_xor_sync(0xffffffff, upper ? low : high, Distance);
  (upper ? low : high) = received;
}

__device__ __forceinline__ void transpose_in_quad(uint32_t (&x)[kQuadLanes]) {
  const bool odd = threadIdx.x & 1;
  const bool second_pair = threadIdx.x & 2;
  trade<1>(x[0], x[1], odd);
  trade<1>(x[2], x[3], odd);
  trade<2>(x[0], x[2], second_pair);
  trade<2>(x[1], x[3], second_pair);
}

}  // namespace fa3::cuda
