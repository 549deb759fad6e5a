// SPDX-License-Identifier: Apache-2.0
// A consumer thread's share of a tile, in registers, and what is done to it element by element.
// Next: consumer_tile.cuh.
#pragma once

#include "engine/cuda/softmax.cuh"
#include "engine/hopper/config/forward_config.h"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

// Apart from the consumer's members, which the compiler only keeps in registers if no array stands
// beside them.
template <ForwardConfig C>
struct ThreadTile {
  float scores[C.block_n / 2];                  // S, then P
  tile::PFragment<C.v_tile(), C.e4m3> weights;  // P of the block before, as an operand
  float output[C.head_dim_v / 2];               // O; of e4m3 products its newest part
  RowState rows;

  __device__ __forceinline__ void rescale_output(const float (&factor)[kRowsPerThread]) {
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) output[i] *= factor[fragment_row_index(i)];
    rows.sum[0] *= factor[0];
    rows.sum[1] *= factor[1];
  }

  __device__ __forceinline__ void add_sums(const StepResult& step) {
    rows.sum[0] += step.block_sum[0];
    rows.sum[1] += step.block_sum[1];
  }

  // Weights [Begin, End) of the thread become the next product's operand.
  template <int Begin, int End>
  __device__ __forceinline__ void pack() {
    if constexpr (C.e4m3) {
#pragma unroll
      for (int i = Begin / 4; i < End / 4; ++i) {
        weights[i / 4][i % 4] = pack_e4m3(scores[e4m3_element(i, 0)], scores[e4m3_element(i, 1)],
                                          scores[e4m3_element(i, 2)], scores[e4m3_element(i, 3)]);
      }
    } else {
#pragma unroll
      for (int i = Begin / 2; i < End / 2; ++i) {
        weights[i / 4][i % 4] = pack_pair<C.input()>(scores[2 * i], scores[2 * i + 1]);
      }
    }
  }
};

}  // namespace fa3::hopper
