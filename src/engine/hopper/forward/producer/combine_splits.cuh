// SPDX-License-Identifier: Apache-2.0
// Who combines the splits of a tile: a kernel of its own behind this one (combine_kernel.h), which
// is left a list, or the CTA that is done with the tile's last split (combine_last.cuh). A Combine
// gets every split that the scheduler finds. Next: tile_scheduler.cuh.
#pragma once

#include "engine/hopper/combine/combine_last.cuh"
#include "engine/hopper/forward_params.h"

namespace fa3::hopper {

class KernelCombine {
 public:
  struct Smem {};
  static constexpr bool kTakesWholeTiles = true;  // their entry says that they are not split

  __device__ __forceinline__ KernelCombine(const ForwardParams& params, Smem&) : params_(params) {}

  // A CTA has an entry of its own, if tiles have none.
  __device__ __forceinline__ void open() const {
    if (!params_.schedule.combine_by_tile) params_.combines[blockIdx.x].num_splits = 0;
  }

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

template <ForwardConfig C>
class LastCtaCombine {
 public:
  using Smem = CombineTiles;
  static constexpr bool kTakesWholeTiles = false;

  __device__ __forceinline__ LastCtaCombine(const ForwardParams& params, Smem& smem)
      : params_(params), smem_(smem) {}

  template <class Splits>
  __device__ __forceinline__ void add(const Splits& splits, const TileSplit& tile_split,
                                      const cuda::QueryRows& queries) {
    CombineTile& combine = smem_.tiles[num_tiles_++];
    combine = splits.combine_tile_of_range(tile_split);
    combine.queries = queries;
  }
  // For the consumers, who read it behind the last work tile.
  __device__ __forceinline__ void close(Smem& smem) const {
    smem.count = num_tiles_;
    __syncwarp();
    const int lane = ptx::lane();
    if (lane < num_tiles_) {
      const SplitCounter count(params_.counts, count_of(smem.tiles[lane], {}));
      count.prepare(count.look());
    }
  }

 private:
  const ForwardParams& params_;
  Smem& smem_;
  int num_tiles_ = 0;
};

}  // namespace fa3::hopper
