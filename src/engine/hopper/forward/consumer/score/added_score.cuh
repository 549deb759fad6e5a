// SPDX-License-Identifier: Apache-2.0
// The score hook of functions that add to the score and know nothing of it. Next:
// lines_score.cuh.
#pragma once

#include "engine/hopper/config/key_term.h"
#include "engine/hopper/forward/consumer/score/function_score.cuh"
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

  template <Kernel C, int Count, class Work>
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
    if constexpr (kLoadsRun) {
      if (start_by_run(products, place)) return;
    }
    if constexpr (kLoadsClampedRun) {
      if (start_by_clamped_run(products, place)) return;
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) products[i] = added(function, place, i);
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
    start_in(products, run, place);
    return true;
  }
  // The same, or by one element a row, if that is all of a block's.
  template <int Count>
  __device__ __forceinline__ bool start_by_clamped_run(float (&products)[Count],
                                                       const ScorePlace& place) const {
    const ClampedRun run[kRowsPerThread] = {clamped_run_at(place, kFirstElement[0]),
                                            clamped_run_at(place, kFirstElement[1])};
    const ClampedRun last[kRowsPerThread] = {clamped_run_at(place, Count - 1 - kFirstElement[1]),
                                             clamped_run_at(place, Count - 1)};
    constexpr int kKeys = fragment_column(Count - 1);
    const Run known[kRowsPerThread] = {{run[0].element, true}, {run[1].element, true}};
    if (__all_sync(0xffffffff, run[0].goes_on(last[0], kKeys) && run[1].goes_on(last[1], kKeys))) {
      start_in(products, known, place);
      return true;
    }
    if (__all_sync(0xffffffff, run[0].stays(last[0]) && run[1].stays(last[1]))) {
      const float of_row[kRowsPerThread] = {added_in(known[0], 0, place, kFirstElement[0]),
                                            added_in(known[1], 0, place, kFirstElement[1])};
#pragma unroll
      for (int i = 0; i < Count; ++i) products[i] = of_row[fragment_row_index(i)];
      return true;
    }
    return false;
  }
  __device__ __forceinline__ ClampedRun clamped_run_at(const ScorePlace& place, int i) const {
    ClampedRun run;
    ScoreFunction f = function;
    f.clamped_run = &run;
    score_at(f, 0.0f, place, i);
    return run;
  }

  template <int Count>
  __device__ __forceinline__ void start_in(float (&products)[Count],
                                           const Run (&run)[kRowsPerThread],
                                           const ScorePlace& place) const {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      products[i] = added_in(run[fragment_row_index(i)], fragment_column(i), place, i);
    }
  }
  __device__ __forceinline__ float added_in(const Run& run, int column, const ScorePlace& place,
                                            int i) const {
    ScoreFunction f = function;
    f.in_run = &run;
    f.column = column;
    return added(f, place, i);
  }

  // -0 is what adds nothing.
  __device__ __forceinline__ float added(const ScoreFunction& f, const ScorePlace& place,
                                         int i) const {
    const float x = score_at(f, -0.0f, place, i) * inverse_scale;
    return kAddsKeyTerm ? bounded_term(x) : x;
  }
};

}  // namespace fa3::hopper
