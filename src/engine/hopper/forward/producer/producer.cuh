// SPDX-License-Identifier: Apache-2.0
// The producer (paper, Algorithm 1): it announces tiles to the consumers and has their Q, K and V
// loaded. It is made of the kernel's scheduler, KV loader and tile scales, which the
// configuration names. Next: forward/consumer/consumer.cuh.
#pragma once

#include "engine/hopper/forward/policies/scores.cuh"
#include "engine/hopper/forward/producer/kv_loader.cuh"
#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/tile/load.cuh"

namespace fa3::hopper {

// Loads Q of the tiles, by TMA: 64 rows for each consumer warpgroup.
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

// What warps 1 to 3 of the producer's warpgroup do.
template <Kernel C>
using HelperOf = typename ScoresOf<C>::template HelperOf<typename KvLoaderOf<C>::Helper>;

template <Kernel C, class Kv, class Scales>
class Producer {
  using Scheduler = TileScheduler<C>;
  using Issuer = typename Scheduler::Issuer;

 public:
  __device__ __forceinline__ Producer(const ForwardParams& params, SmemPlan<C>& smem,
                                      SmemAddresses<C> at)
      : params_(params),
        smem_(smem),
        at_(at),
        tiles_(params, smem.tiles),
        q_(params, at),
        kv_(params, at),
        score_loads_(params, at) {}

  __device__ __forceinline__ void run() {
    tiles_.open();
    for (; !tiles_.done(); tiles_.advance()) load_tile();
    if constexpr (Scheduler::kFinishesEarly) kv_.load_delayed_v();
    tiles_.close(smem_.tiles);
    next_work_tile().num_blocks = 0;
    announce();
    kv_.load_delayed_v();
  }

 private:
  __device__ __forceinline__ void load_tile() {
    WorkTileOf<C>& work = next_work_tile();
    const bool describes_later = tiles_.describes_later();
    if (!tiles_.next(work)) return;
    if (!describes_later) show(work);
    const TileKeys keys = keys_of<C>(params_, work);
    score_loads_.start_tile(work);
    const int last = work.num_blocks - 1;
    const int draw_at = last > 0 ? 1 : 0;
    // The only Q is spent once the tile before has its last scores: after this tile's first K.
    constexpr bool q_first = C.shape.q_stages > 1;
    for (int block = last; block >= 0; --block) {
      if (block == draw_at) tiles_.draw_next();
      if (block == last && q_first) q_.load(work);
      score_loads_.load(keys, block);
      kv_.load(keys, block, block == last);
      if (block == last && !q_first) {
        if (describes_later) {
          tiles_.describe_rest(work);
          show(work);
        }
        q_.load(work);
      }
    }
  }

  // Where the next tile is described; announce() shows it to the consumers.
  __device__ __forceinline__ WorkTileOf<C>& next_work_tile() {
    at_.work_tile_pipeline().wait_empty(work_tile_);
    return smem_.work_tiles[work_tile_.stage()];
  }

  __device__ __forceinline__ void show(WorkTileOf<C>& work) {
    Scales::add(params_, smem_, work, work_tile_.stage());
    announce();
  }

  __device__ __forceinline__ void announce() {
    Issuer::sync();
    if (ptx::kEveryLaneArrives || Issuer::leads()) {
      ptx::mbarrier_arrive(at_.work_tile_pipeline().full(work_tile_.stage()));
    }
    work_tile_.advance();
  }

  const ForwardParams& params_;
  SmemPlan<C>& smem_;
  const SmemAddresses<C> at_;
  WorkTileState work_tile_;
  Scheduler tiles_;
  QueryLoader<C> q_;
  KvLoader<Kv> kv_;
  [[no_unique_address]] typename ScoresOf<C>::Loads score_loads_;
};

}  // namespace fa3::hopper
