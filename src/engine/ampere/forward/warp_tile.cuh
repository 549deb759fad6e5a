// SPDX-License-Identifier: Apache-2.0
// The registers of a warp, and its two products by mma.sync: S = Q K^T and O += P V. A warp has one
// or two tiles of 16 query rows; a fragment of K or V that it loads serves all of them. Next:
// score_step.cuh.
#pragma once

#include "engine/ampere/config/forward_config.h"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/smem.cuh"
#include "engine/cuda/softmax/max_logit.cuh"
#include "engine/cuda/softmax/softmax.cuh"

namespace fa3::ampere {

// Where ldmatrix finds a lane's row of four 8 x 8 matrices that are 16 rows by 16 columns, in a
// tile that begins at a multiple of its swizzle's period: the matrices go down the rows first, or
// along the columns.
template <TileLayout Layout>
struct MatrixRows {
  static constexpr int kColumns = 16;
  uint32_t own;

  __device__ __forceinline__ static MatrixRows down(uint32_t tile, int first_row = 0) {
    const int lane = int(thread_in_block() % kWarpSize);
    return {tile + uint32_t(Layout.chunk_offset(first_row + lane % 16, lane / 16 * 8))};
  }
  __device__ __forceinline__ static MatrixRows along(uint32_t tile) {
    const int lane = int(thread_in_block() % kWarpSize);
    return {tile + uint32_t(Layout.chunk_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8))};
  }
  // `row` and `column` are constants, multiples of 16. What the swizzle flips are address bits.
  __device__ __forceinline__ uint32_t at(int row, int column) const {
    const int slab = column / Layout.slab_columns(), in_slab = column % Layout.slab_columns();
    return (own ^ uint32_t(in_slab * 2)) +
           uint32_t(slab * Layout.slab_bytes() + row * Layout.row_bytes());
  }
};

// The largest product of each row of a kernel with max_logit; of others nothing.
template <ForwardConfig C, bool On = C.outputs.max_logit>
struct LargestProducts {
  __device__ __forceinline__ void forget_largest() {}
};
template <ForwardConfig C>
struct LargestProducts<C, true> {
  float largest[C.row_tiles()][kRowsPerThread];

  __device__ __forceinline__ void forget_largest() {
#pragma unroll
    for (auto& of_tile : largest) of_tile[0] = of_tile[1] = -kInfinity;
  }
  template <int Count>
  __device__ __forceinline__ void see_products(int row_tile, const float (&products)[Count]) {
    float most[kRowsPerThread];
    largest_of_rows<0, Count>(products, most);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      largest[row_tile][r] = max_nan(largest[row_tile][r], most[r]);
    }
  }
};

template <ForwardConfig C>
struct WarpTile : LargestProducts<C> {
  static constexpr int kRowTiles = C.row_tiles();
  static constexpr int kScores = C.block_n / 2;      // a thread's, of 16 rows
  static constexpr int kOutputs = C.head_dim_v / 2;  // likewise
  static constexpr int kSteps = C.head_dim / 16;     // of Q K^T
  static constexpr int kKeptSteps = C.q_columns / 16;

  float scores[kRowTiles][kScores];
  float output[kRowTiles][kOutputs];
  RowState rows[kRowTiles];
  uint32_t q[kKeptSteps > 0 ? kKeptSteps : 1][kRowTiles][4];

  __device__ __forceinline__ void clear() {
    this->forget_largest();
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (float& o : output[t]) o = 0.0f;
      rows[t] = RowState{};
    }
  }

  // q_rows: of the warp's first row.
  __device__ __forceinline__ void load_queries(MatrixRows<C.q_tile()> q_rows) {
#pragma unroll
    for (int step = 0; step < kKeptSteps; ++step) load_query_step(q_rows, step, q[step]);
  }

  // meanwhile(step): instructions that run between the products of a step and those of the next.
  template <class Meanwhile>
  __device__ __forceinline__ void multiply_keys(MatrixRows<C.q_tile()> q_rows, uint32_t k_tile,
                                                const Meanwhile& meanwhile) {
    const auto k_rows = MatrixRows<C.k_tile()>::along(k_tile);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (float& s : scores[t]) s = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t read[kRowTiles][4];
      if (step >= kKeptSteps) load_query_step(q_rows, step, read);
      const uint32_t(&own)[kRowTiles][4] = step < kKeptSteps ? q[step] : read;
#pragma unroll
      for (int key = 0; key < C.block_n; key += 16) {
        uint32_t k[4];
        ldmatrix_x4(k_rows.at(key, step * 16), k);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          mma_m16n8k16<C.element>(scores[t] + key / 2, own[t], {k[0], k[1]});
          mma_m16n8k16<C.element>(scores[t] + key / 2 + 4, own[t], {k[2], k[3]});
        }
      }
      meanwhile(step);
    }
  }

  // P of 16 rows, as left factors of 16 keys each.
  using Factors = uint32_t[C.block_n / 16][4];

  // The scores are P, of which `drop` takes some away. meanwhile(step): as above, between the steps
  // of the first 16 keys.
  template <class Drop, class Meanwhile>
  __device__ __forceinline__ void multiply_values(uint32_t v_tile, const Drop& drop,
                                                  const Meanwhile& meanwhile) {
    Factors p[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        p[t][i / 4][i % 4] = pack_pair<C.element>(scores[t][2 * i], scores[t][2 * i + 1]);
      }
      drop(p[t]);
    }
    const auto v_rows = MatrixRows<C.v_tile()>::down(v_tile);
#pragma unroll
    for (int key = 0; key < C.block_n; key += 16) {
#pragma unroll
      for (int column = 0; column < C.head_dim_v; column += 16) {
        uint32_t v[4];
        ldmatrix_x4_trans(v_rows.at(key, column), v);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          mma_m16n8k16<C.element>(output[t] + column / 2, p[t][key / 16], {v[0], v[1]});
          mma_m16n8k16<C.element>(output[t] + column / 2 + 4, p[t][key / 16], {v[2], v[3]});
        }
        if (key == 0) meanwhile(column / 16);
      }
    }
  }

  // O and its sums move to the references that a step has left.
  __device__ __forceinline__ void rescale(int t, const StepResult& step) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) rows[t].sum[r] *= step.rescale[r];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) output[t][i] *= step.rescale[fragment_row_index(i)];
  }
  __device__ __forceinline__ void add_sums(int t, const StepResult& step) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) rows[t].sum[r] += step.block_sum[r];
  }

 private:
  __device__ __forceinline__ static void load_query_step(MatrixRows<C.q_tile()> q_rows, int step,
                                                         uint32_t (&own)[kRowTiles][4]) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) ldmatrix_x4(q_rows.at(t * 16, step * 16), own[t]);
  }
};

}  // namespace fa3::ampere
