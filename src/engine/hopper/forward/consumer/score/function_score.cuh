// SPDX-License-Identifier: Apache-2.0
// The score hook of kernels that are compiled at run time, for a score function of the caller's
// (cuda/softmax/score_function.cuh). It wants to know where each score is. Next:
// added_score.cuh.
#pragma once

#include "engine/cuda/softmax/score.cuh"
#include "engine/cuda/softmax/score_captures.h"
#include "engine/cuda/softmax/score_function.cuh"
#include "engine/cuda/softmax/softmax.cuh"
#include "engine/cuda/tile/rows.h"
#include "engine/hopper/config/kernel.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

// Where a thread's scores of a block are: its two rows, and its first key.
struct ScorePlace {
  int sequence;
  int head[kRowsPerThread];
  int query[kRowsPerThread];
  int key;
};

template <class Work>
__device__ __forceinline__ ScorePlace place_of_scores(const ForwardParams& params, const Work& work,
                                                      int first_row, int first_key) {
  const int lane = int(thread_in_block() % kWarpSize);
  ScorePlace place;
  place.sequence = work.place.sequence_or(work.keys.batch);
  place.key = first_key_of(work) + key_in_tile(work, first_key) + fragment_lane_column(lane);
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = first_row + lane / kQuadLanes + r * kRowDistance;
    place.head[r] = params.output.pack.head(work.queries.pack, row);
    place.query[r] = params.output.pack.query(row);
  }
  return place;
}

// The function of a thread's i-th score, for which x is at hand; and x from memory.
__device__ __forceinline__ float score_at(const ScoreFunction& f, ScoreNumber x, float score,
                                          const ScorePlace& place, int i) {
  const int r = fragment_row_index(i);
  return f.of_element(x, score, place.sequence, place.head[r], place.query[r],
                      place.key + fragment_column(i));
}
__device__ __forceinline__ ScoreNumber x_at(const ScoreFunction& f, const ScorePlace& place,
                                            int i) {
  const int r = fragment_row_index(i);
  return f.x_at(place.sequence, place.head[r], place.query[r], place.key + fragment_column(i));
}

// By a tile of captured elements in shared memory, 16 keys at a time, in the order of a product's
// operand: scores[i] = score_of(x, i), where x is the thread's i-th element.
template <Kernel C, int Count, class ScoreAt>
__device__ __forceinline__ void apply_tile(float (&scores)[Count], uint32_t tile, unsigned warp,
                                           const ScoreAt& score_of) {
  constexpr tile::TileLayout kTile = C.captured_tile();
  constexpr int kKeys = 16, kScores = kKeys / 2, kSteps = kTile.slab_columns() / kKeys;
  static_assert(kTile.row_bytes() == 128);
  const int lane = int(thread_in_block() % kWarpSize);
  const uint32_t mine =
      tile + kTile.chunk_offset(int(warp) * kRowsPerWarp + lane % 16, lane / 16 * 8);
#pragma unroll
  for (int step = 0; step < Count / kScores; ++step) {
    uint32_t words[4];
    // Its chunks differ from the first step's in bits that the swizzle only flips.
    ptx::ldmatrix_x4(
        (mine ^ uint32_t(step % kSteps * kKeys * 2)) + step / kSteps * kTile.slab_bytes(), words);
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      const int i = step * kScores + j;
      scores[i] = score_of(element_of_pair(words[j / 2], j % 2 == 1), i);
    }
  }
}

// Scores are natural ones behind prepare(): the function's.
struct FunctionScore : ScaledScore {
  ScoreFunction function;
  float scale;  // softmax scale

  __device__ __forceinline__ explicit FunctionScore(const ForwardParams& params)
      : ScaledScore{kLog2E}, function{params.score.captures}, scale(params.scale_log2) {}

  // The elements of a block, by one address a row.
  template <int Count, class Work>
  __device__ __forceinline__ void load_ahead(Pairs<Count>& pairs, const ForwardParams& params,
                                             const Work& work, int first_row, int first_key) const {
    const ScorePlace place = place_of_scores(params, work, first_row, first_key);
    if (!has_pairs<Count>(place)) return;
    const void* row[kRowsPerThread];
#pragma unroll
    for (int i = 0; i < Count; i += 2) {
      const int r = fragment_row_index(i);
      if (fragment_column(i) == 0) {
        row[r] = function.place(ScoreFunction::Address{function, place.query[r], place.key},
                                place.sequence, place.head[r], place.query[r], place.key);
      }
      pairs.words[i / 2] =
          score::load_pair(static_cast<const uint16_t*>(row[r]) + fragment_column(i));
    }
  }

  template <int Count, class Work>
  __device__ __forceinline__ void prepare(float (&products)[Count], const Pairs<Count>& pairs,
                                          const ForwardParams& params, const Work& work,
                                          int first_row, int first_key) const {
    const ScorePlace place = place_of_scores(params, work, first_row, first_key);
    if constexpr (kLoadsPairs) {
      if (has_pairs<Count>(place)) {
        apply<Count>(products, place,
                     [&](int i) { return element_of_pair(pairs.words[i / 2], i % 2 == 1); });
        return;
      }
    }
    apply<Count>(products, place, [&](int i) { return x_at(function, place, i); });
  }
  template <Kernel C, int Count, class Work>
  __device__ __forceinline__ void prepare_by_tile(float (&products)[Count], uint32_t tile,
                                                  unsigned warp, const ForwardParams& params,
                                                  const Work& work, int first_row,
                                                  int first_key) const {
    const ScorePlace place = place_of_scores(params, work, first_row, first_key);
    apply_tile<C>(products, tile, warp, [&](ScoreNumber x, int i) {
      return score_at(function, x, products[i] * scale, place, i);
    });
  }

 private:
  template <int Count>
  __device__ __forceinline__ bool has_pairs(const ScorePlace& place) const {
    const int first_key = place.key - fragment_lane_column(int(thread_in_block() % kWarpSize));
    return function.has_pairs(first_key, Count * kRowsPerThread);
  }

  // x_of(i): of the thread's i-th score.
  template <int Count, class XOf>
  __device__ __forceinline__ void apply(float (&products)[Count], const ScorePlace& place,
                                        const XOf& x_of) const {
    const auto score_of = [&](const ScoreFunction& f, int i) {
      return score_at(f, x_of(i), products[i] * scale, place, i);
    };
    function.choose<Count>(score_of, [&](const ScoreFunction& f) {
#pragma unroll
      for (int i = 0; i < Count; ++i) products[i] = score_of(f, i);
    });
  }
};

}  // namespace fa3::hopper
