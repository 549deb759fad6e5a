// SPDX-License-Identifier: Apache-2.0
// A block of scores whose function is compiled at run time (cuda/softmax/score_function.cuh): what
// score_block.cuh does to others, at places that the function is told. Mask and bits have hidden
// products, as -inf, before the function sees the rest. P passes to the other side times the
// function's slope; where captured tensors have gradients, too, which P (dP - delta) makes before
// the slope, the slopes lie beside P, or the scores if these gradients ask for them (KeptScores).
#pragma once

#include "engine/ampere/backward/score_block.cuh"
#include "engine/cuda/softmax/score_gradient.cuh"

namespace fa3::ampere {

// The place of a warp's block: its sequence and head, its first key and query.
struct BlockPlace {
  int sequence, head, first_key, first_query;
};

template <BackwardConfig C>
struct FunctionBlock {
  using Block = ScoreBlock<C>;
  using Scores = typename Block::Scores;
  using Packed = typename Block::Packed;
  static constexpr int kEach = 8;  // scores of a thread in a tile and a step

  // The keys and queries of a thread's scores.
  struct ThreadPlace : BlockPlace {
    __device__ __forceinline__ explicit ThreadPlace(const BlockPlace& block) : BlockPlace(block) {
      const int lane = int(thread_in_block() % kWarpSize);
      first_key += fragment_row(lane);
      first_query += fragment_lane_column(lane);
    }
    __device__ __forceinline__ int key(int tile, int j) const {
      return first_key + tile * kRowsPerWarp + fragment_row_index(j) * kRowDistance;
    }
    __device__ __forceinline__ int query(int step, int j) const {
      return first_query + step * 16 + fragment_column(j);
    }
  };

  // Products -> P = 2^(score * log2(e) - lse), packed; times the slope to shared memory.
  static __device__ __forceinline__ void exponentiate(Packed& packed, Scores& products,
                                                      uint32_t lse_row,
                                                      const ScoreGradientParams& params,
                                                      const BlockPlace& block, uint32_t p_smem,
                                                      uint32_t slopes_smem) {
    const ThreadPlace at(block);
    const auto score_of = [&](const ScoreFunction& f, int i) {
      const int tile = i / kEach / Block::kSteps, step = i / kEach % Block::kSteps, j = i % kEach;
      return f.of(Block::at(products, tile, step, j) * params.scale, at.sequence, at.head,
                  at.query(step, j), at.key(tile, j));
    };
    ScoreFunction{params.captures}.template choose<Block::kTiles * Block::kSteps * kEach>(
        score_of, [&](const ScoreFunction& f) {
          apply(f, packed, products, lse_row, params.scale, at, p_smem, slopes_smem);
        });
  }

  // dP -> dS, packed.
  static __device__ __forceinline__ void differentiate(Packed& ds, Scores& dp, uint32_t p_smem,
                                                       uint32_t delta_row, uint32_t slopes_smem,
                                                       const ScoreGradientParams& params,
                                                       const BlockPlace& block) {
    const ThreadPlace at(block);
#pragma unroll
    for (int tile = 0; tile < Block::kTiles; ++tile) {
      ScoreGradient gradient(params);
#pragma unroll
      for (int step = 0; step < Block::kSteps; ++step) {
        float delta[4];
        Block::read(delta, delta_row, step);
        uint32_t p[4];
        ld_shared_b32x4(Block::place(p_smem, tile, step), p);
        uint32_t words[4] = {};
        if constexpr (C.keeps_slopes) {
          ld_shared_b32x4(Block::place(slopes_smem, tile, step), words);
        }
        float values[kEach];
#pragma unroll
        for (int j = 0; j < kEach; j += 2) {
          float weights[2], kept[2];
          unpack_pair<C.element>(p[j / 2], weights[0], weights[1]);
          Kept::unpack(words[j / 2], kept);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& x = values[j + half];
            const float d = delta[j / 4 * 2 + half];
            x = weights[half] * (Block::at(dp, tile, step, j + half) - d);
            gradient.key = fragment_row_index(j + half);
            gradient.element = step * kEach + j + half;
            gradient.counts = x != 0.0f;
            const int query = at.query(step, j + half), key = at.key(tile, j + half);
            gradient.of(x, kept[half], at.sequence, at.head, query, key);
            if constexpr (C.keeps_slopes) {
              const float slope =
                  Kept::slope(gradient, kept[half], at.sequence, at.head, query, key);
              x = x == 0.0f ? 0.0f : x * slope;
            }
          }
        }
        Block::pack(ds[tile][step], values);
      }
      gradient.add_sums();
    }
  }

 private:
  using Kept = KeptScores<C.element>;
  static_assert(!kKeepsScores || C.keeps_slopes);

  static __device__ __forceinline__ void apply(const ScoreFunction& function, Packed& packed,
                                               Scores& products, uint32_t lse_row, float scale,
                                               const ThreadPlace& at, uint32_t p_smem,
                                               uint32_t slopes_smem) {
#pragma unroll
    for (int step = 0; step < Block::kSteps; ++step) {
      float lse[4];
      Block::read(lse, lse_row, step);
#pragma unroll
      for (int tile = 0; tile < Block::kTiles; ++tile) {
        float p[kEach], kept[kEach];
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          const float product = Block::at(products, tile, step, j), score = product * scale;
          const int query = at.query(step, j), key = at.key(tile, j);
          const float found = function.of(score, at.sequence, at.head, query, key);
          const float exponent = __fmaf_rn(found, kLog2E, -lse[j / 4 * 2 + j % 2]);
          p[j] = product == -kInfinity ? 0.0f : bounded_p(exponent);
          kept[j] = Kept::of(function, score, at.sequence, at.head, query, key);
          if constexpr (!C.keeps_slopes) kept[j] = p[j] == 0.0f ? 0.0f : p[j] * kept[j];
        }
        Block::pack(packed[tile][step], p);
        uint32_t other[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) other[j] = Kept::pack(kept[2 * j], kept[2 * j + 1]);
        st_shared_b32x4(Block::place(C.keeps_slopes ? slopes_smem : p_smem, tile, step), other);
        if constexpr (C.keeps_slopes) {
          st_shared_b32x4(Block::place(p_smem, tile, step), packed[tile][step]);
        }
      }
    }
  }
};

}  // namespace fa3::ampere
