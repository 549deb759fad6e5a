// SPDX-License-Identifier: Apache-2.0
// Splits that a kernel of its own combines (combine_kernel.cu), by a list that is left for it.
// Next: split_tiles.cuh.
#pragma once

#include "engine/hopper/forward_params.h"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {

// Takes down what the combine kernel needs.
class KernelCombine {
 public:
  struct Smem {};
  static constexpr bool kTakesWholeTiles = true;  // their entry says that they are not split

  // The CTA's range of a stream-K schedule, or its first tile or split.
  static __device__ __forceinline__ int range(const ForwardParams&) { return int(blockIdx.x); }

  __device__ __forceinline__ KernelCombine(const ForwardParams& params, Smem&) : params_(params) {}

  // A CTA has an entry of its own, if tiles have none.
  __device__ __forceinline__ void open() const {
    if (!params_.schedule.combine_by_tile) params_.combines[blockIdx.x].num_splits = 0;
  }

  __device__ __forceinline__ void close(const Smem&) const {}

  template <class Splits>
  __device__ __forceinline__ void add(const Splits& splits, const TileSplit& tile_split,
                                      const cuda::QueryRows& queries) const {
    const int at = splits.combine_index();
    if (at < 0) return;
    CombineTile combine = splits.combine_tile(tile_split);
    combine.queries = queries;
    params_.combines[at] = combine;
  }

 private:
  const ForwardParams& params_;
};

}  // namespace fa3::hopper
