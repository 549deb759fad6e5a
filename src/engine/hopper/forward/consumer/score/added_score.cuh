// SPDX-License-Identifier: Apache-2.0
// The score hook of functions that add to the score and know nothing of it. Next:
// lines_score.cuh.
#pragma once

#include "engine/hopper/config/key_term.h"
#include "engine/hopper/forward/consumer/score/function_score.cuh"

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
    apply_tile<C>(products, tile, warp, [&](ScoreNumber x, int i) { return added(x, place, i); });
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
    for (int i = 0; i < Count; ++i) products[i] = added(x_at(function, place, i), place, i);
  }
  using ScaledScore::prepare;
  // To products that began with nothing.
  template <int Count, class Work>
  __device__ __forceinline__ void prepare(float (&products)[Count], const Pairs<Count>&,
                                          const ForwardParams& params, const Work& work,
                                          int first_row, int first_key) const {
    const ScorePlace place = place_of_scores(params, work, first_row, first_key);
#pragma unroll
    for (int i = 0; i < Count; ++i) products[i] += added(x_at(function, place, i), place, i);
  }

 private:
  // By one address a row, if all elements are inside.
  template <int Count>
  __device__ __forceinline__ bool start_by_run(float (&products)[Count],
                                               const ScorePlace& place) const {
    Run run[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      run[r] = place_at(ScoreFunction::RunAt{function, fragment_column(Count - 1)}, place,
                        kFirstElement[r]);
    }
    if (!__all_sync(0xffffffff, run[0].is_inside && run[1].is_inside)) return false;
    start_in(products, run, place);
    return true;
  }
  // By one address a row, or by one element a row if a block has no other.
  template <int Count>
  __device__ __forceinline__ bool start_by_clamped_run(float (&products)[Count],
                                                       const ScorePlace& place) const {
    const ScoreFunction::ClampedRunAt at{function};
    const ClampedRun run[kRowsPerThread] = {place_at(at, place, kFirstElement[0]),
                                            place_at(at, place, kFirstElement[1])};
    const ClampedRun last[kRowsPerThread] = {place_at(at, place, Count - 1 - kFirstElement[1]),
                                             place_at(at, place, Count - 1)};
    constexpr int kKeys = fragment_column(Count - 1);
    const Run known[kRowsPerThread] = {{run[0].element, true}, {run[1].element, true}};
    if (__all_sync(0xffffffff, run[0].goes_on(last[0], kKeys) && run[1].goes_on(last[1], kKeys))) {
      start_in(products, known, place);
      return true;
    }
    if (__all_sync(0xffffffff, run[0].stays(last[0]) && run[1].stays(last[1]))) {
      const float of_row[kRowsPerThread] = {added(known[0].element(0), place, kFirstElement[0]),
                                            added(known[1].element(0), place, kFirstElement[1])};
#pragma unroll
      for (int i = 0; i < Count; ++i) products[i] = of_row[fragment_row_index(i)];
      return true;
    }
    return false;
  }
  template <class At>
  __device__ __forceinline__ typename At::Result place_at(const At& at, const ScorePlace& place,
                                                          int i) const {
    const int r = fragment_row_index(i);
    return function.place(at, place.sequence, place.head[r], place.query[r],
                          place.key + fragment_column(i));
  }

  template <int Count>
  __device__ __forceinline__ void start_in(float (&products)[Count],
                                           const Run (&run)[kRowsPerThread],
                                           const ScorePlace& place) const {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      products[i] = added(run[fragment_row_index(i)].element(fragment_column(i)), place, i);
    }
  }

  __device__ __forceinline__ float added(ScoreNumber x, const ScorePlace& place, int i) const {
    const int r = fragment_row_index(i);
    const float sum = function.added(x, place.sequence, place.head[r], place.query[r],
                                     place.key + fragment_column(i)) *
                      inverse_scale;
    return kAddsKeyTerm ? bounded_term(sum) : sum;
  }
};

}  // namespace fa3::hopper
