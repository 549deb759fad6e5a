// SPDX-License-Identifier: Apache-2.0
// A tile of scores whose function is compiled at run time (cuda/softmax/score_function.cuh), 64
// keys by a block of queries: what score_tile.cuh does to others, at places that the function is
// told. Kernels are kCapped where the function's slope is not 1, or gradients of captured tensors
// ask for scores: then shared memory keeps, in registers' order, the slopes of the thread's scores
// or these themselves (KeptScores) until dP is there; where dK and dV are split, P times the slope
// for the other warpgroup.
#pragma once

#include "engine/cuda/softmax/score_gradient.cuh"
#include "engine/hopper/backward/scores/score_tile.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
struct FunctionTile {
  using Tile = ScoreTile<C>;
  using Scores = typename Tile::Scores;
  static constexpr int kStepScores = Tile::kDepth / 2;  // a thread's, of a step of 16 queries

  // The keys and queries of a thread's scores.
  struct ThreadPlace : TilePlace {
    __device__ __forceinline__ explicit ThreadPlace(const TilePlace& tile) : TilePlace(tile) {
      const int thread = int(thread_in_block() % kWarpgroupSize);
      first_key += fragment_row(thread);
      first_query += fragment_lane_column(thread);
    }
    __device__ __forceinline__ int key(int i) const {
      return first_key + fragment_row_index(i) * kRowDistance;
    }
    __device__ __forceinline__ int query(int i) const { return first_query + fragment_column(i); }
  };

  // Where a thread finds the captured elements of its scores, if a tile of them lies in a stage of
  // dS: in the places that its dS will take, as dS comes out of registers (store_transposed()).
  static __device__ __forceinline__ uint32_t captured_tile(uint32_t stage, int first_column) {
    const auto [query, key] =
        tile::stored_place_transposed(int(thread_in_block() % kWarpgroupSize));
    return stage + C.ds_tile().chunk_offset(query, first_column + key);
  }

  // Products become what the function returns. `captured`: captured_tile(), or not read.
  static __device__ __forceinline__ void prepare(Scores& scores, const BackwardParams& params,
                                                 const TilePlace& tile, uint32_t slopes_smem,
                                                 uint32_t captured) {
    const ThreadPlace at(tile);
    const ScoreFunction function{params.score.captures};
    const float scale = params.score.scale;
    const auto score_of = [&](const ScoreFunction& f, int i) {
      return f.of(scores[i] * scale, at.sequence, at.head, at.query(i), at.key(i));
    };
    function.choose<Tile::kScores>(score_of, [&](const ScoreFunction& f) {
      apply(f, scores, scale, at, slopes_smem, captured);
    });
  }

  // Masked scores become P.
  static __device__ __forceinline__ void exponentiate(Scores& scores,
                                                      const typename Tile::Statistics& lse,
                                                      ScaledScore score, uint32_t) {
#pragma unroll
    for (int i = 0; i < Tile::kScores; ++i) {
      scores[i] = bounded_p(score.exponent(scores[i], lse[Tile::query_index(i)]));
    }
  }
  static __device__ __forceinline__ void exponentiate(Scores& scores, uint32_t lse_row,
                                                      ScaledScore score, uint32_t slopes_smem) {
#pragma unroll
    for (int step = 0; step < Tile::kScores / kStepScores; ++step) {
      float lse[kStepScores / 2];
      Tile::read(lse, lse_row + step * Tile::kDepth * uint32_t{sizeof(float)});
#pragma unroll
      for (int j = 0; j < kStepScores; ++j) {
        float& x = scores[step * kStepScores + j];
        x = bounded_p(score.exponent(x, lse[Tile::query_index(j)]));
      }
      if constexpr (C.splits_dkv()) multiply_slopes(scores, step, slopes_smem);
    }
  }

  // dP -> dS. Captured tensors have their gradients from P (dP - delta), before the slope. With
  // dropout the weights in `p` are signed (ScoreTile::pack_signed()), and dS is not 1 - dropout_p
  // times itself, as elsewhere: captured tensors' gradients are made of it.
  static __device__ __forceinline__ void differentiate(Scores& dp, const typename Tile::Packed& p,
                                                       const typename Tile::Delta& deltas,
                                                       const BackwardParams& params,
                                                       const TilePlace& tile,
                                                       uint32_t slopes_smem) {
    const ThreadPlace at(tile);
    ScoreGradient gradient(params.score);
#pragma unroll
    for (int step = 0; step < Tile::kScores / kStepScores; ++step) {
      float read[Tile::kStepStatistics];
      const float* const delta = deltas_of(step, deltas, read);
      uint32_t words[4];
      if constexpr (kKeeps) ptx::ld_shared_b32x4(Tile::packed_place(slopes_smem, step), words);
#pragma unroll
      for (int j = 0; j < kStepScores; j += 2) {
        float weights[2], kept[2] = {};
        ptx::unpack_pair<C.element>(p[step][j / 2], weights[0], weights[1]);
        if constexpr (kKeeps) Kept::unpack(words[j / 2], kept);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = step * kStepScores + j + half;
          float& x = dp[i];
          const float row_delta = delta[Tile::query_index(j + half)];
          if constexpr (C.dropout()) {
            const float kept_weight = fmaxf(weights[half], 0.0f) * params.dropout.scale;
            x = __fmaf_rn(kept_weight, x, -fabsf(weights[half]) * row_delta);
          } else {
            x = weights[half] * (x - row_delta);
          }
          gradient.key = fragment_row_index(i);
          gradient.element = i;
          const int query = at.query(i), key = at.key(i);
          gradient.counts = x != 0.0f;
          gradient.of(x, kept[half], at.sequence, at.head, query, key);
          if constexpr (kKeeps) {
            const float slope = Kept::slope(gradient, kept[half], at.sequence, at.head, query, key);
            x = x == 0.0f ? 0.0f : x * slope;
          }
        }
      }
    }
    gradient.add_sums();
  }

 private:
  static __device__ __forceinline__ const float* deltas_of(int step,
                                                           const typename Tile::Statistics& deltas,
                                                           float (&)[Tile::kStepStatistics]) {
    return &deltas[step * Tile::kStepStatistics];
  }
  static __device__ __forceinline__ const float* deltas_of(int step, uint32_t row,
                                                           float (&read)[Tile::kStepStatistics]) {
    Tile::read(read, row + step * Tile::kDepth * uint32_t{sizeof(float)});
    return read;
  }

  using Kept = KeptScores<C.element>;
  static constexpr bool kKeeps = C.capped() && !C.splits_dkv();
  static_assert(!kKeepsScores || kKeeps);
  static_assert(!C.dropout() || C.signs_p());

  // Products become what the function returns, and its slopes or they go to shared memory.
  static __device__ __forceinline__ void apply(const ScoreFunction& function, Scores& scores,
                                               float scale, const ThreadPlace& at,
                                               uint32_t slopes_smem,
                                               [[maybe_unused]] uint32_t captured) {
#pragma unroll
    for (int step = 0; step < Tile::kScores / kStepScores; ++step) {
      float kept[kStepScores];
      [[maybe_unused]] uint32_t words[4];  // as of P: of two neighbouring queries each
      if constexpr (kLoadsTile) {
        ptx::ldmatrix_x4_trans(captured + step * Tile::kDepth * C.ds_tile().row_bytes(), words);
      }
#pragma unroll
      for (int j = 0; j < kStepScores; ++j) {
        const int i = step * kStepScores + j;
        const float score = scores[i] * scale;
        ScoreNumber x;
        if constexpr (kLoadsTile) {
          x = element_of_pair(words[j / 2], j % 2 == 1);
        } else {
          x = function.x_at(at.sequence, at.head, at.query(i), at.key(i));
        }
        scores[i] = function.of_element(x, score, at.sequence, at.head, at.query(i), at.key(i));
        if constexpr (C.capped()) {
          kept[j] = Kept::of(function, score, at.sequence, at.head, at.query(i), at.key(i));
        }
      }
      if constexpr (C.capped()) {
        uint32_t packed[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          packed[j] = Kept::pack(kept[2 * j], kept[2 * j + 1]);
        }
        ptx::st_shared_b32x4(Tile::packed_place(slopes_smem, step), packed);
      }
    }
  }

  // P times the slope takes the slope's place.
  static __device__ __forceinline__ void multiply_slopes(const Scores& p, int step, uint32_t smem) {
    uint32_t packed[4];
    ptx::ld_shared_b32x4(Tile::packed_place(smem, step), packed);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float slope[2];
      ptx::unpack_pair<C.element>(packed[j], slope[0], slope[1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float weight = p[step * kStepScores + 2 * j + half];
        slope[half] = weight == 0.0f ? 0.0f : weight * slope[half];
      }
      packed[j] = pack_pair<C.element>(slope[0], slope[1]);
    }
    ptx::st_shared_b32x4(Tile::packed_place(smem, step), packed);
  }
};

}  // namespace fa3::hopper
