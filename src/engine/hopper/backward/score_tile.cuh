// SPDX-License-Identifier: Apache-2.0
// One tile of scores as a warpgroup holds it, 64 keys by a block of queries, and what is done to it:
// weights from scores, gradients of scores from gradients of weights. Keys are the accumulator's rows,
// so packed it is the left operand of a product that sums over queries.
#pragma once

#include "engine/cuda/instructions.cuh"
#include "engine/hopper/backward/backward_config.h"
#include "engine/hopper/backward/query_steps.h"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/ptx/unpack.cuh"
#include "engine/hopper/tile/gemm.cuh"
#include "engine/hopper/tile/stored_matrix.h"

namespace fa3::hopper {

template <BackwardConfig C>
struct ScoreTile {
  static constexpr int kScores = C.block_m / 2;      // of a thread
  static constexpr int kStatistics = C.block_m / 4;  // queries of a thread
  static constexpr int kDepth = C.q_layout().mma_depth();
  using Scores = float[kScores];
  using Packed = tile::Weights<C.q_layout()>;
  using Statistics = float[kStatistics];

  // A number for each query of the thread: two neighbours in each 8.
  static __device__ __forceinline__ void read(Statistics& values, uint32_t row) {
    const uint32_t mine =
        row + fragment_lane_column(int(thread_in_block())) * uint32_t{sizeof(float)};
#pragma unroll
    for (int i = 0; i < kStatistics / 2; ++i) {
      ptx::ld_shared_f32x2(mine + i * 8 * sizeof(float),
                           reinterpret_cast<float(&)[2]>(values[2 * i]));
    }
  }

  // Where of those numbers score i has its query.
  static __device__ __forceinline__ constexpr int query_slot(int i) {
    return i / 4 * 2 + i % 2;
  }

  // A score is hidden from queries before the first that sees its key.
  static __device__ __forceinline__ void mask(Scores& scores, const BackwardExtents& extents,
                                              int first_key, int first_row) {
    const int thread = int(thread_in_block() % kWarpgroupSize);
    const int key = first_key + fragment_row(thread);
    const int lane_query = first_row + fragment_lane_column(thread);
    int first[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      first[r] = first_query(extents, key + r * kRowDistance) - lane_query;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if (fragment_column(i) < first[fragment_row_slot(i)]) {
        scores[i] = -__builtin_inff();
      }
    }
  }

  // S -> P = 2^(scale_log2 * score - lse).
  static __device__ __forceinline__ void exponentiate(Scores& scores, const Statistics& lse,
                                                      float scale_log2) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      scores[i] = ex2(__fmaf_rn(scores[i], scale_log2, -lse[query_slot(i)]));
    }
  }

  // dP -> dS = P (dP - delta).
  static __device__ __forceinline__ void differentiate(Scores& dp, const Packed& p,
                                                       const Statistics& delta) {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      float low, high;
      ptx::unpack_pair<C.element>(p[i / 8][i / 2 % 4], low, high);
      dp[i] = low * (dp[i] - delta[query_slot(i)]);
      dp[i + 1] = high * (dp[i + 1] - delta[query_slot(i + 1)]);
    }
  }

  static __device__ __forceinline__ void pack(Packed& packed, const Scores& values) {
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      packed[i / 8][i / 2 % 4] = pack_pair<C.element>(values[i], values[i + 1]);
    }
  }

  // Into other registers, which the compiler must not take to be the same: what a product in flight
  // reads cannot be written, so the same registers would have to be free before. `zero` is one, but
  // the compiler does not know.
  static __device__ __forceinline__ void move(Packed& to, const Packed& from, uint32_t zero) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) to[i / 4][i % 4] = from[i / 4][i % 4] ^ zero;
  }

  // As registers hold it, 16 bytes of each thread in a row: for the same thread of another warpgroup.
  static __device__ __forceinline__ void store_packed(uint32_t smem, const Packed& packed) {
#pragma unroll
    for (int step = 0; step < C.block_m / kDepth; ++step) {
      ptx::st_shared_b32x4(packed_place(smem, step), packed[step]);
    }
  }
  static __device__ __forceinline__ void load_packed(Packed& packed, uint32_t smem) {
#pragma unroll
    for (int step = 0; step < C.block_m / kDepth; ++step) {
      ptx::ld_shared_b32x4(packed_place(smem, step), packed[step]);
    }
  }
  static __device__ __forceinline__ uint32_t packed_place(uint32_t smem, int step) {
    return smem + (step * kWarpgroupSize + thread_in_block() % kWarpgroupSize) * 16;
  }

  // Transposed: a row in shared memory is a query, the warpgroup's keys begin at a column of it.
  static __device__ __forceinline__ void store_transposed(uint32_t smem, int first_column,
                                                          const Packed& packed) {
    const auto [query, key] =
        tile::stored_place_transposed(int(thread_in_block() % kWarpgroupSize));
    const uint32_t mine = smem + C.ds_layout().chunk_offset(query, first_column + key);
#pragma unroll
    for (int step = 0; step < C.block_m / kDepth; ++step) {  // at the same place of the swizzle
      ptx::stmatrix_x4_trans(mine + step * kDepth * C.ds_layout().row_bytes(), packed[step]);
    }
  }
};

}  // namespace fa3::hopper
