// SPDX-License-Identifier: Apache-2.0
// Q of the tiles, by TMA: 64 rows for each consumer warpgroup. Next: producer.cuh.
#pragma once

#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/tile/load.cuh"

namespace fa3::hopper {

template <Kernel C>
class QueryLoader {
  using Issuer = typename TileScheduler<C>::Issuer;

 public:
  __device__ __forceinline__ QueryLoader(const ForwardParams& params, SmemAddresses<C> at)
      : params_(params), at_(at) {}

  // In parts, each as soon as its warpgroup has released the one before.
  __device__ __forceinline__ void load(const WorkTileOf<C>& work) {
    const PackGqa pack = params_.output.pack;
#pragma unroll 1  // the producer has few registers
    for (int w = 0; w < C.consumers(); ++w) {
      const Pipeline<C.shape.q_stages> pipeline = at_.q_pipeline(w);
      const int part_row = w * kRowsPerWarpgroup;
      pipeline.wait_empty(q_);
      if (!Issuer::leads()) continue;
      load_part(pipeline, part_row, place_of(work.queries, pack.query(work.first_row + part_row)));
    }
    q_.advance();
  }

 private:
  static constexpr tile::TileLayout kQ = C.tiles_in_smem().q;

  __device__ __forceinline__ bool is_clipped() const {
    return C.general() && params_.q_is_clipped;
  }

  __device__ __forceinline__ void load_part(Pipeline<C.shape.q_stages> pipeline, int part_row,
                                            const ptx::TileCoordinates& place) {
    const uint32_t smem = at_.q(q_.stage()) + part_row * kQ.row_bytes(),
                   full = pipeline.full(q_.stage());
    if (is_clipped()) {
      const bool some_inside = place.row < kRowsPerWarpgroup >> params_.output.pack.log2;
      tile::load_clipped_rows({params_.q_map, params_.q_outside, params_.q.columns}, kQ,
                              kRowsPerWarpgroup, some_inside, smem, full, place);
    } else {
      tile::load_rows(params_.q_map, kQ, kRowsPerWarpgroup, smem, full, place);
    }
  }

  // Where a warpgroup's queries lie, from the `first` of their sequence on.
  __device__ __forceinline__ ptx::TileCoordinates place_of(const cuda::QueryRows& queries,
                                                           int first) const {
    if (is_clipped()) {
      const int box = kRowsPerWarpgroup >> params_.output.pack.log2;
      const int left = queries.used - first;
      const int rows = left < 0 ? 0 : left < box ? left : box;
      return {0, box - rows, queries.begin + first + rows, queries.pack};
    }
    return {0, queries.begin + first, queries.pack, queries.batch};
  }

  const ForwardParams& params_;
  const SmemAddresses<C> at_;
  PipelineState<C.shape.q_stages> q_;
};

}  // namespace fa3::hopper
