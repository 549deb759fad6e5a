// SPDX-License-Identifier: Apache-2.0
// The score hook of kernels that are compiled at run time, for a score function of the caller's
// (cuda/softmax/score_function.cuh). It wants to know where each score is. Next:
// consumer_score.cuh.
#pragma once

#include "engine/cuda/softmax/loaded_pairs.h"
#include "engine/cuda/softmax/score_function.cuh"
#include "engine/cuda/softmax/softmax.cuh"
#include "engine/cuda/tile/rows.h"
#include "engine/hopper/config/forward_config.h"
#include "engine/hopper/forward/smem_plan.cuh"
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

// From a tile's first key on, or, of a block mask, where blocks are numbers in a list, from its
// sequence's.
template <class Work>
__device__ __forceinline__ int key_in_tile(const Work& work, int first_key) {
  if constexpr (requires { work.place.blocks; }) {
    return cuda::listed_key(work.place.blocks, first_key);
  } else {
    return first_key;
  }
}

template <class Work>
__device__ __forceinline__ ScorePlace place_of_scores(const ForwardParams& params, const Work& work,
                                                      int first_row, int first_key) {
  const int lane = int(thread_in_block() % kWarpSize);
  ScorePlace place;
  place.sequence = work.place.sequence_or(work.keys.batch);
  place.key = key_in_tile(work, first_key) + fragment_lane_column(lane);
  if constexpr (!requires { work.place.blocks; }) place.key += work.first_key;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = first_row + lane / kQuadLanes + r * kRowDistance;
    place.head[r] = params.output.pack.head(work.queries.pack, row);
    place.query[r] = params.output.pack.query(row);
  }
  return place;
}

// The function of a thread's i-th score.
__device__ __forceinline__ float score_at(const ScoreFunction& f, float score,
                                          const ScorePlace& place, int i) {
  const int r = fragment_row_index(i);
  return f.of(score, place.sequence, place.head[r], place.query[r], place.key + fragment_column(i));
}

// By a tile of captured elements in shared memory, 16 keys at a time, in the order of a product's
// operand: scores[i] = score_of(f, i), where f has the thread's i-th element.
template <ForwardConfig C, int Count, class ScoreOf>
__device__ __forceinline__ void apply_tile(float (&scores)[Count], const ScoreFunction& function,
                                           uint32_t tile, unsigned warp, const ScoreOf& score_of) {
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
      ScoreFunction f = function;
      f.pair = {&words[j / 2], j % 2 == 1};
      scores[i] = score_of(f, i);
    }
  }
}

// Scores are natural ones behind prepare(): the function's.
struct FunctionScore {
  ScoreFunction function;
  float scale;  // softmax scale

  __device__ __forceinline__ explicit FunctionScore(const ForwardParams& params)
      : function{params.score.captures}, scale(params.scale_log2) {}

  // What load_of_key() takes of a block, by one address a row.
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
        ScoreFunction f = function;
        f.pair.place = &row[r];
        score_at(f, 0.0f, place, i);
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
        apply<Count>(products, place, [&](ScoreFunction& f, int i) {
          f.pair = {&pairs.words[i / 2], i % 2 == 1};
        });
        return;
      }
    }
    apply<Count>(products, place, [](ScoreFunction&, int) {});
  }
  template <ForwardConfig C, int Count, class Work>
  __device__ __forceinline__ void prepare_by_tile(float (&products)[Count], uint32_t tile,
                                                  unsigned warp, const ForwardParams& params,
                                                  const Work& work, int first_row,
                                                  int first_key) const {
    const ScorePlace place = place_of_scores(params, work, first_row, first_key);
    apply_tile<C>(products, function, tile, warp, [&](const ScoreFunction& f, int i) {
      return score_at(f, products[i] * scale, place, i);
    });
  }
  __device__ __forceinline__ float exponent(float score, float ref) const {
    return __fmaf_rn(score, kLog2E, -ref);
  }
  __device__ __forceinline__ float reference(float score) const {
    return score * kLog2E;
  }

 private:
  template <int Count>
  __device__ __forceinline__ bool has_pairs(const ScorePlace& place) const {
    const int first_key = place.key - fragment_lane_column(int(thread_in_block() % kWarpSize));
    return function.has_pairs<kPairTensor>(first_key, Count * kRowsPerThread);
  }

  // set_pair(function, i): for the thread's i-th score.
  template <int Count, class SetPair>
  __device__ __forceinline__ void apply(float (&products)[Count], const ScorePlace& place,
                                        const SetPair& set_pair) const {
    const auto score_of = [&](ScoreFunction f, int i) {
      set_pair(f, i);
      return score_at(f, products[i] * scale, place, i);
    };
    function.choose<Count>(score_of, [&](const ScoreFunction& f) {
#pragma unroll
      for (int i = 0; i < Count; ++i) products[i] = score_of(f, i);
    });
  }
};

// The function does nothing but add to the score: products begin with that, and go on as where
// there is no function.
struct AddedScore : ScaledScore {
  ScoreFunction function;
  float inverse_scale;

  __device__ __forceinline__ explicit AddedScore(const ForwardParams& params)
      : ScaledScore{params.score.scale_log2},
        function{params.score.captures},
        inverse_scale(params.score.inverse_scale) {}

  template <ForwardConfig C, int Count, class Work>
  __device__ __forceinline__ void start_by_tile(float (&products)[Count], uint32_t tile,
                                                unsigned warp, const ForwardParams& params,
                                                const Work& work, int first_row,
                                                int first_key) const {
    const ScorePlace place = place_of_scores(params, work, first_row, first_key);
    apply_tile<C>(products, function, tile, warp,
                  [&](const ScoreFunction& f, int i) { return added(f, place, i); });
  }
  template <int Count, class Work>
  __device__ __forceinline__ void start(float (&products)[Count], const ForwardParams& params,
                                        const Work& work, int first_row, int first_key) const {
    const ScorePlace place = place_of_scores(params, work, first_row, first_key);
    if constexpr (kAddsTwoLines) {
      if (start_by_two_lines(products, place)) return;
    }
    if constexpr (kLoadsRun) {
      if (start_by_run(products, place)) return;
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) products[i] = added(function, place, i);
  }
  // By lines that hold for all of a tile. lines: of the warp's rows, in shared memory, for want of
  // registers.
  template <class Work>
  __device__ __forceinline__ void take_lines(AddedLine* lines, const ForwardParams& params,
                                             const Work& work, int first_row, int first_key) const {
    const ScorePlace place = place_of_scores(params, work, first_row, first_key);
    const int lane = int(thread_in_block() % kWarpSize);
    __syncwarp();                  // those of the tile before have been read
    if (lane % kQuadLanes == 0) {  // whose first key is the block's
      for (int r = 0; r < kRowsPerThread; ++r) {
        const Line line = line_at(place, kFirstElement[r]);
        lines[lane / kQuadLanes + r * kRowDistance] = {line.at, line.step,
                                                       key_in_tile(work, first_key)};
      }
    }
    __syncwarp();
  }
  template <int Count, class Work>
  __device__ __forceinline__ static void start_by_lines(float (&products)[Count],
                                                        const AddedLine* lines, const Work& work,
                                                        int first_key) {
    const int lane = int(thread_in_block() % kWarpSize);
    const int key = key_in_tile(work, first_key) + fragment_lane_column(lane);
    const auto line_of = [&](int r) -> Line {
      const AddedLine line = lines[lane / kQuadLanes + r * kRowDistance];
      return {__fmaf_rn(float(key - line.key), line.step, line.at), line.step};
    };
    const Line line_0 = line_of(0), line_1 = line_of(1);
    // Always so. Behind a branch the compiler keeps these instructions from those that pack P
    // before them, for both of which registers do not last.
    if (first_key >= 0) add_lines(products, line_0, line_1);
  }
  using ScaledScore::prepare;
  // To products that began with nothing.
  template <int Count, class Work>
  __device__ __forceinline__ void prepare(float (&products)[Count], const Pairs<Count>&,
                                          const ForwardParams& params, const Work& work,
                                          int first_row, int first_key) const {
    const ScorePlace place = place_of_scores(params, work, first_row, first_key);
#pragma unroll
    for (int i = 0; i < Count; ++i) products[i] += added(function, place, i);
  }

 private:
  // What is added in a row: at the thread's first key of a block, and more from key to key.
  struct Line {
    float at, step;
  };

  __device__ __forceinline__ Line line_at(const ScorePlace& place, int i) const {
    Line line;
    ScoreFunction f = function;
    f.step = &line.step;
    line.at = added(f, place, i);
    line.step *= inverse_scale;
    return line;
  }
  template <int Count>
  __device__ __forceinline__ static void add_lines(float (&products)[Count], const Line& line_0,
                                                   const Line& line_1) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const Line& line = fragment_row_index(i) == 0 ? line_0 : line_1;
      products[i] = __fmaf_rn(float(fragment_column(i)), line.step, line.at);
    }
  }

  // If both rows of all of the warp's threads have one line each in this block.
  template <int Count>
  __device__ __forceinline__ bool start_by_two_lines(float (&products)[Count],
                                                     const ScorePlace& place) const {
    const Line line_0 = line_at(place, kFirstElement[0]), line_1 = line_at(place, kFirstElement[1]);
    const bool is_line = line_at(place, Count - 1 - kFirstElement[1]).step == line_0.step &&
                         line_at(place, Count - 1).step == line_1.step;
    if (!__all_sync(0xffffffff, is_line)) return false;
    add_lines(products, line_0, line_1);
    return true;
  }

  // By one address a row, if all elements are inside.
  template <int Count>
  __device__ __forceinline__ bool start_by_run(float (&products)[Count],
                                               const ScorePlace& place) const {
    Run run[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      ScoreFunction f = function;
      f.run = &run[r];
      f.column = fragment_column(Count - 1);
      score_at(f, 0.0f, place, kFirstElement[r]);
    }
    if (!__all_sync(0xffffffff, run[0].is_inside && run[1].is_inside)) return false;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      ScoreFunction f = function;
      f.in_run = &run[fragment_row_index(i)];
      f.column = fragment_column(i);
      products[i] = added(f, place, i);
    }
    return true;
  }

  // -0 is what adds nothing.
  __device__ __forceinline__ float added(const ScoreFunction& f, const ScorePlace& place,
                                         int i) const {
    return score_at(f, -0.0f, place, i) * inverse_scale;
  }
};

}  // namespace fa3::hopper
