// SPDX-License-Identifier: Apache-2.0
// Values of e4m3 that come in rows: TMA brings a block's to a stage, and the warps of the
// producer's warpgroup that load nothing transpose it where it lies. The consumers know nothing of
// it. Pays where no kernel before could be ahead of the tiles: docs/lab/fp8.md. Next:
// load_tma_e4m3.cuh.
#pragma once

#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/transpose_square.cuh"

namespace fa3::hopper {

// Where V's rows have arrived, which then are transposed where they lie: a barrier for each V, of
// which there are never more than stages.
template <Kernel C>
struct ValueRowsPipeline {
  PipelineBarriers<C.shape.kv_stages> barriers;
};
template <Kernel C>
__device__ __forceinline__ Pipeline<C.shape.kv_stages> value_rows_pipeline(SmemAddresses<C> at) {
  return {at.base + uint32_t{offsetof(SmemPlan<C>, loader)}};
}

// One of the warps: of every square of V it takes the blocks above the diagonal at one distance of
// three, and each third block on it.
template <Kernel C>
class ValueTransposer {
 public:
  __device__ __forceinline__ ValueTransposer(const ForwardParams&, SmemPlan<C>& smem,
                                             SmemAddresses<C> at, int warp)
      : smem_(smem), at_(at), warp_(warp) {}

  static __device__ __forceinline__ bool takes_part(const ForwardParams&) { return true; }
  static __device__ __forceinline__ void init_pipelines(SmemAddresses<C> at, int consumers) {
    at.kv_pipeline().init(consumers);
    for (int i = 0; i < C.shape.kv_stages; ++i)
      ptx::mbarrier_init(value_rows_pipeline(at).full(i), 1);
  }

  // The order of KvLoader::load(): K of a block, then V of the block before, across tiles.
  __device__ __forceinline__ void run() {
    bool has_delayed_v = false;
    for (int blocks = next_tile(); blocks > 0; blocks = next_tile()) {
#pragma unroll 1
      for (; blocks > 0; --blocks) {
        kv_.advance();
        if (has_delayed_v) transpose();
        has_delayed_v = true;
      }
    }
    if (has_delayed_v) transpose();
  }

 private:
  static constexpr int kSquare = C.shape.block_n;  // keys, and as many channels
  static constexpr int kBlocks = tile::blocks_of_square(kSquare);
  static constexpr int kSquares = C.shape.head_dim_v / kSquare;
  static constexpr uint32_t kSquareBytes = kSquare * kSquare;
  static_assert(!C.transposes_v() || (kSquare == 128 && C.shape.head_dim_v % kSquare == 0));
  static_assert(!C.transposes_v() || kBlocks - 1 == kHelperWarps);

  // Its number of blocks; 0: there is none.
  __device__ __forceinline__ int next_tile() {
    const Pipeline<kWorkTileStages> tiles = at_.work_tile_pipeline();
    tiles.wait_full(work_tile_);
    const int blocks = smem_.work_tiles[work_tile_.stage()].num_blocks;
    __syncwarp();  // every lane has read
    if (leads_warp()) tiles.release(work_tile_.stage());
    work_tile_.advance();
    return blocks;
  }

  __device__ __forceinline__ void transpose() {
    value_rows_pipeline(at_).wait_full(value_rows_);
    const uint32_t v = at_.kv(uniform_stage(kv_.stage()));
    const int distance = warp_ + 1;
#pragma unroll 1
    for (int i = 0; i < kBlocks / 2 * kSquares; ++i) {
      lane_.transpose_above(v + i / 2 * kSquareBytes, distance, tile::row_at(distance, i % 2));
    }
#pragma unroll 1
    for (int i = warp_; i < kBlocks * kSquares; i += kHelperWarps) {
      lane_.transpose_diagonal(v + i / kBlocks * kSquareBytes, i % kBlocks);
    }
    // wgmma reads what threads have stored, and TMA writes over what they have read.
    ptx::fence_proxy_async();
    ptx::bar_sync(int(NamedBarrier::kHelpers), kHelperWarps * kWarpSize);
    if (warp_ == 0 && ptx::lane() == 0) ptx::mbarrier_arrive(at_.kv_pipeline().full(kv_.stage()));
    value_rows_.advance();
    kv_.advance();
  }

  SmemPlan<C>& smem_;
  const SmemAddresses<C> at_;
  const int warp_;
  const tile::SquareLane<kSquare> lane_;
  WorkTileState work_tile_;
  PipelineState<C.shape.kv_stages> kv_, value_rows_;
};

}  // namespace fa3::hopper
