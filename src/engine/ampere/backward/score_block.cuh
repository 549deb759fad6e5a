// SPDX-License-Identifier: Apache-2.0
// A block of scores as a warp holds it, 16 or 32 keys by the queries of a step, and what is done to
// it: P from S, dS from dP. Keys are the accumulator's rows, so the packed block is the left
// operand of a product that sums over queries.
//
// P passes from one side to the other through shared memory in the order of registers: a lane reads
// what the same lane of the other side has stored. With softcap or dropout that is P's other form
// (kernels with `scored`): times the softcap's derivative, and negative where P is dropped.
#pragma once

#include "engine/ampere/backward/backward_smem.h"
#include "engine/ampere/backward/key_dropout.cuh"
#include "engine/cuda/mask/bit_mask.cuh"
#include "engine/cuda/mask/mask.cuh"
#include "engine/cuda/ptx/smem.cuh"
#include "engine/cuda/ptx/unpack.cuh"
#include "engine/cuda/softmax/softcap_score.cuh"

namespace fa3::ampere {

// The mask policy of keys that no query behind the first must not see.
struct QueryBegin : QueryEdge<SequenceExtents> {
  static constexpr bool kHidesRight = false;
};

template <BackwardConfig C>
struct ScoreBlock {
  static constexpr int kTiles = C.row_tiles();
  static constexpr int kSteps = C.block_m / 16;  // products that sum over the queries
  using Scores = float[kTiles][C.block_m / 8][4];
  using Packed = uint32_t[kTiles][kSteps][4];
  using OfTile = float[C.block_m / 2];

  static __device__ __forceinline__ OfTile& tile(Scores& scores, int i) {
    return reinterpret_cast<OfTile&>(scores[i]);
  }

  // The lane's four of a step's 16 queries: two neighbours in each 8.
  static __device__ __forceinline__ void read(float (&values)[4], uint32_t row, int step) {
    const uint32_t mine =
        row + uint32_t(fragment_lane_column(int(thread_in_block())) * int{sizeof(float)});
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ld_shared_f32x2(mine + uint32_t((step * 16 + half * 8) * int{sizeof(float)}),
                      reinterpret_cast<float(&)[2]>(values[2 * half]));
    }
  }

  // Where a lane's part of P lies.
  static __device__ __forceinline__ uint32_t place(uint32_t p, int tile, int step) {
    const int thread = int(thread_in_block()) % kThreadsOfSide;
    return p + uint32_t(((tile * kSteps + step) * kThreadsOfSide + thread) * 16);
  }

  // Causal calls and the last keys take the short way.
  static __device__ __forceinline__ void mask(Scores& scores, const SequenceExtents& extents,
                                              int first_key, int first_row) {
    if (extents.rule.left == extents.rule.kUnbounded &&
        extents.rule.chunk == extents.rule.kNoChunks) {
      mask_by<QueryBegin>(scores, extents, first_key, first_row);
    } else {
      mask_by<QueryEdge<SequenceExtents>>(scores, extents, first_key, first_row);
    }
  }
  template <class Edge>
  static __device__ __forceinline__ void mask_by(Scores& scores, const SequenceExtents& extents,
                                                 int first_key, int first_row) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      mask_scores(tile(scores, i), Edge{extents, first_key + i * kRowsPerWarp}, PackGqa{},
                  int(thread_in_block() % kWarpSize), first_row);
    }
  }

  // What the bits of a block of the mask hide, which has all these keys and queries.
  static __device__ __forceinline__ void hide(Scores& scores, const uint32_t* bits, int first_key,
                                              int first_row) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      hide_transposed(tile(scores, i), bits + first_row % kMaskBlock * kMaskRowWords,
                      first_key % kMaskBlock + i * kRowsPerWarp,
                      int(thread_in_block() % kWarpSize));
    }
  }

  // Element j of a step: of which 8 queries, and which there.
  static __device__ __forceinline__ constexpr float& at(Scores& scores, int tile, int step, int j) {
    return scores[tile][2 * step + j / 4][j % 4];
  }

  // S -> P = 2^(score - lse), packed too.
  static __device__ __forceinline__ void exponentiate(Packed& packed, Scores& scores,
                                                      uint32_t lse_row, float scale_log2) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float lse[4];
      read(lse, lse_row, step);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        float p[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          p[j] = bounded_p(__fmaf_rn(at(scores, i, step, j), scale_log2, -lse[j / 4 * 2 + j % 2]));
        }
        pack(packed[i][step], p);
      }
    }
  }

  static __device__ __forceinline__ void pack(uint32_t (&packed)[4], const float (&values)[8]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      packed[j] = pack_pair<C.element>(values[2 * j], values[2 * j + 1]);
    }
  }

  static __device__ __forceinline__ void store(uint32_t p, const Packed& packed) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        st_shared_b32x4(place(p, i, step), packed[i][step]);
      }
    }
  }

  // From products to scores in log2 units, in kernels with P's other form.
  static __device__ __forceinline__ void prepare(Scores& scores, const BackwardParams& params) {
    const SoftcapScore score{{params.soft_cap}, params.per_cap};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (params.capped) {
        score.prepare(tile(scores, i));
      } else {
#pragma unroll
        for (float& x : tile(scores, i)) x *= params.scale_log2;
      }
    }
  }

  // Scores of prepare() -> P, packed without dropped weights; P's other form goes to shared memory.
  static __device__ __forceinline__ void exponentiate_scored(Packed& packed, Scores& scores,
                                                             uint32_t lse_row,
                                                             const BackwardParams& params,
                                                             const KeyDropout (&dropout)[kTiles],
                                                             uint32_t p_smem, int first_row) {
    const SoftcapScore score{{params.soft_cap}, params.per_cap};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float lse[4];
      read(lse, lse_row, step);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        uint32_t sign[KeyDropout::kScores] = {};
        if (params.dropout.dropout.on()) dropout[i].signs(sign, first_row + step * 16);
        float other[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          float& x = at(scores, i, step, j);
          const float derivative = score.derivative(x);
          x = bounded_p(x - lse[j / 4 * 2 + j % 2]);
          x = __uint_as_float(__float_as_uint(x) ^ sign[j]);
          other[j] = x * derivative;
        }
        uint32_t packed_other[4];
        pack(packed_other, other);
        st_shared_b32x4(place(p_smem, i, step), packed_other);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          packed[i][step][j] = pack_positive_pair<C.element>(at(scores, i, step, 2 * j),
                                                             at(scores, i, step, 2 * j + 1));
        }
      }
    }
  }

  // dP -> dS = P (dP - delta), packed; with dropout `keeps`, 1 - p, times that.
  static __device__ __forceinline__ void differentiate(Packed& ds, Scores& dp, uint32_t p_smem,
                                                       uint32_t delta_row, float keeps) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float delta[4];
      read(delta, delta_row, step);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        uint32_t p[4];
        ld_shared_b32x4(place(p_smem, i, step), p);
        float values[8];
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          float pair[2];
          unpack_pair<C.element>(p[j / 2], pair[0], pair[1]);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float x = at(dp, i, step, j + half), d = delta[j / 4 * 2 + half];
            if constexpr (C.scored) {
              const float kept = signbit(pair[half]) ? 0.0f : x;
              values[j + half] = fabsf(pair[half]) * __fmaf_rn(-keeps, d, kept);
            } else {
              values[j + half] = pair[half] * (x - d);
            }
          }
        }
        pack(ds[i][step], values);
      }
    }
  }

  // dS to shared memory, a key a row, for the product that sums over keys. A warp has all of 16
  // rows, and four lanes a chunk of each: the swizzle puts the eight rows into different banks.
  static __device__ __forceinline__ void store_ds(uint32_t ds_smem, int first_key_of_warp,
                                                  const Packed& ds) {
    const int lane = int(thread_in_block() % kWarpSize), row = lane / kQuadLanes;
    const uint32_t mine = ds_smem + uint32_t((first_key_of_warp + row) * C.ds_tile().row_bytes() +
                                             lane % kQuadLanes * 4);
    const uint32_t chunk = uint32_t(C.ds_tile().swizzled_chunk(0, row)) * kChunkBytes;
    constexpr int kChunks = C.ds_tile().row_bytes() / kChunkBytes;  // of a slab
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int n = 0; n < C.block_m / 8; ++n) {
        const uint32_t to = mine + (chunk ^ uint32_t(n % kChunks * kChunkBytes)) +
                            uint32_t(n / kChunks * C.ds_tile().slab_bytes());
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          const int rows = i * kRowsPerWarp + r * kRowDistance;
          st_shared_b32(to + uint32_t(rows * C.ds_tile().row_bytes()), ds[i][n / 2][n % 2 * 2 + r]);
        }
      }
    }
  }
};

}  // namespace fa3::ampere
