// SPDX-License-Identifier: Apache-2.0
// The score hook of functions that add to the score and know nothing of it. Next:
// consumer_score.cuh.
#pragma once

#include "engine/hopper/forward/consumer/consumer_score_function.cuh"
#include "engine/hopper/forward/smem_plan.cuh"

namespace fa3::hopper {

// Products begin with what is added, and go on as where there is no function.
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
