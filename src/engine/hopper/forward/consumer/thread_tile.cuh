// SPDX-License-Identifier: Apache-2.0
// A consumer thread's share of a tile, in registers, and what is done to it element by element.
// Next: consumer_state.cuh.
#pragma once

#include <type_traits>

#include "core/dropout/dropout.h"
#include "engine/cuda/mask/bit_mask.cuh"
#include "engine/cuda/softmax/loaded_pairs.h"
#include "engine/cuda/softmax/softmax.cuh"
#include "engine/hopper/config/kernel.h"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

// Dropout's words for a block's P, 64 keys each.
template <int Keys>
struct Draws {
  PhiloxWords draws[Keys / kDropoutKeys];
};
struct NoDraws {};
// The bits of a block that is seen in part.
template <int Keys>
struct BlockBits {
  cuda::RowBitsOf<Keys / 32> bits;
};

// Apart from ConsumerState, which the compiler only keeps in registers if no array stands in it.
template <Kernel C>
struct ThreadTile
    : std::conditional_t<C.dropout(), Draws<C.shape.block_n>,
                         std::conditional_t<C.block_mask(), BlockBits<C.shape.block_n>, NoDraws>>,
      cuda::Pairs<C.shape.block_n / 2> {
  static constexpr int kScores = C.shape.block_n / 2;

  float scores[kScores];                             // S, then P
  tile::PFragment<C.tiles_in_smem().v, C.e4m3()> p;  // P of the block before, as an operand
  float output[C.shape.head_dim_v / 2];  // O; for e4m3 its newest part (promoted_sum.cuh)
  RowState rows;
  __device__ __forceinline__ void rescale_output(const float (&factor)[kRowsPerThread]) {
#pragma unroll
    for (int i = 0; i < C.shape.head_dim_v / 2; ++i) output[i] *= factor[fragment_row_index(i)];
    rows.sum[0] *= factor[0];
    rows.sum[1] *= factor[1];
  }

  __device__ __forceinline__ void add_sums(const StepResult& step) {
    rows.sum[0] += step.block_sum[0];
    rows.sum[1] += step.block_sum[1];
  }
};

// Elements [Begin, End) of the thread's P become part of the next product's operand.
template <int Begin, int End, Kernel C>
__device__ __forceinline__ void pack_p(ThreadTile<C>& r) {
  const float(&p)[ThreadTile<C>::kScores] = r.scores;
  if constexpr (C.e4m3()) {
#pragma unroll
    for (int i = Begin / 4; i < End / 4; ++i) {
      r.p[i / 4][i % 4] = pack_e4m3(p[e4m3_element(i, 0)], p[e4m3_element(i, 1)],
                                    p[e4m3_element(i, 2)], p[e4m3_element(i, 3)]);
    }
  } else {
#pragma unroll
    for (int i = Begin / 2; i < End / 2; ++i) {
      r.p[i / 4][i % 4] = pack_pair<C.types().product>(p[2 * i], p[2 * i + 1]);
    }
  }
}
template <Kernel C>
__device__ __forceinline__ void pack_p(ThreadTile<C>& r) {
  pack_p<0, ThreadTile<C>::kScores>(r);
}

}  // namespace fa3::hopper
