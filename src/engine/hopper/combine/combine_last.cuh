// SPDX-License-Identifier: Apache-2.0
// Splits of a tile, combined in the kernel by the CTA, or the warp (decode/), that finishes the
// last of them: a small call would wait for the start of a second kernel. A counter for each tile
// counts finished splits. Counters lie in the caller's workspace, which holds anything at first: a
// counter counts from zero once its upper bits hold the launch's own number, which every CTA that
// needs the counter puts there if it is missing. The combining CTA resets it, so that a captured
// launch finds it as it left it. Next: combine_row.cuh.
#pragma once

#include "engine/hopper/combine/combine_row.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/global.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

// The rows of a tile that one CTA combines: each share has a counter of its own.
struct RowShare {
  int first = 0, step = 1;
};

__device__ __forceinline__ int count_of(const CombineTile& tile, RowShare share) {
  return tile.later_partials * share.step + share.first;
}

// A counter, for one thread.
class SplitCounter {
 public:
  __device__ __forceinline__ SplitCounter(const SplitCounters& counts, int number)
      : counts_(counts), cell_(counts.cells + number) {}

  // Before the splits are finished: prepare() what look() found some time before.
  __device__ __forceinline__ uint64_t look() const {
    return __ldcg(reinterpret_cast<const unsigned long long*>(cell_));
  }
  __device__ __forceinline__ void prepare(uint64_t found) const {
    if (found >> counts_.kBits == counts_.launch) return;
    ptx::replace(cell_, found, counts_.launch << counts_.kBits);
  }
  // Counts one finished split, stored by this thread and those behind the same barrier. True for
  // the last of `of`: after another barrier these threads may read all of them. The counter then
  // starts from zero again.
  __device__ __forceinline__ bool add(int of) const {
    const uint64_t before = ptx::add_in_order(cell_, 1);
    const bool is_last = (before & SplitCounters::kMost) + 1 == unsigned(of);
    if (is_last) *cell_ = counts_.launch << SplitCounters::kBits;
    return is_last;
  }

 private:
  const SplitCounters& counts_;
  uint64_t* const cell_;
};

// The gate of combined rows; none, here (gated_combine.cuh).
template <Kernel C>
struct CombinedGate {
  static_assert(!C.gated(), "the source of this kernel does not include its gate");
  static __device__ __forceinline__ NoGate of(const ForwardParams&) { return {}; }
};

// Rows times splits that a warp loads at once: several rows, if tiles have few splits.
inline constexpr int kAtOnce = 16, kFewSplits = 4;

// Rows of a tile from `row` on, `step` apart, by a warp.
template <Kernel C, int Rows, int Together>
__device__ __forceinline__ void combine_rows(const ForwardParams& params, const CombineTile& tile,
                                             int row, int step) {
#pragma unroll 1
  for (int first = 0; first < params.partials.columns; first += kCombinedColumns) {
    const int column = first + ptx::lane() * kLaneColumns;
    CombinedSum sums[Rows];
    add_splits<Rows, Together>(sums, params.partials, tile, row, step, 0, column);
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      const int tile_row = row + r * step;
      if (tile_row >= params.partials.rows) break;
      finish_row<C.element, stores_any_rows(C)>(sums[r], params.output, tile, tile_row, column,
                                                CombinedGate<C>::of(params));
    }
  }
}

template <Kernel C, int Rows, int Together>
__device__ __forceinline__ void combine_share(const ForwardParams& params, const CombineTile& tile,
                                              RowShare share, int warp) {
  const int step = C.consumer_warps() * share.step;
#pragma unroll 1
  for (int row = share.first + warp * share.step; row < params.partials.rows; row += Rows * step) {
    combine_rows<C, Rows, Together>(params, tile, row, step);
  }
}

// The at most two tiles that a CTA has splits of. `thread` counts the threads that have stored the
// splits: all of them call this.
template <Kernel C>
__device__ __forceinline__ void combine_tiles_of_cta(const ForwardParams& params,
                                                     CombineTiles& combine, int thread,
                                                     RowShare share = {}) {
  constexpr int kThreads = C.consumer_warps() * kWarpSize;
  const auto sync = [] { ptx::bar_sync(int(NamedBarrier::kCombine), kThreads); };
  const int count = combine.count;
  if (count == 0) return;
  sync();
  if (thread < count) {
    const CombineTile& tile = combine.tiles[thread];
    combine.is_last[thread] =
        SplitCounter(params.counts, count_of(tile, share)).add(tile.num_splits);
  }
  sync();
  const int warp = thread / kWarpSize;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (!combine.is_last[i]) continue;
    const CombineTile tile = combine.tiles[i];
    if constexpr (C.is_decode()) {  // few rows, and few splits
      combine_share<C, 1, kFewSplits>(params, tile, share, warp);
    } else if (tile.num_splits <= kFewSplits) {
      combine_share<C, kAtOnce / kFewSplits, kFewSplits>(params, tile, share, warp);
    } else {
      combine_share<C, 1, kAtOnce>(params, tile, share, warp);
    }
  }
}

}  // namespace fa3::hopper
