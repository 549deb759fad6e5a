// SPDX-License-Identifier: Apache-2.0
// What one consumer warpgroup holds of the pipelines: which stages of K and V, which part of Q,
// which tile's work tile, and when it gives each back. A warp gives a stage back by its lane 0,
// once all its lanes are done with it. Next: consumer_tile.cuh.
#pragma once

#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/fence.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class ConsumerStages {
 public:
  using KvState = PipelineState<C.kv_stages>;

  __device__ __forceinline__ ConsumerStages(SmemAddresses<C> at, int warpgroup)
      : at_(at), q_pipeline_(at.q_pipeline(warpgroup)), warpgroup_(warpgroup) {}

  __device__ __forceinline__ SmemAddresses<C> at() const { return at_; }

  // ---- Tiles: their work tiles, and their parts of Q ----

  // The next tile's work tile; it is the current one's once take_work_tile() was called.
  __device__ __forceinline__ uint32_t wait_for_work_tile() const {
    at_.work_tile_pipeline().wait_full(work_tile_.next());
    return work_tile_.next().stage();
  }
  __device__ __forceinline__ void take_work_tile() { work_tile_.advance(); }
  __device__ __forceinline__ void take_q() { q_.advance(); }

  __device__ __forceinline__ uint32_t item() const { return work_tile_.stage(); }
  __device__ __forceinline__ uint32_t work_tile_before() const {
    return work_tile_.previous().stage();
  }

  __device__ __forceinline__ void wait_for_q() const { q_pipeline_.wait_full(q_); }
  __device__ __forceinline__ void release_q() const {
    if (arrives()) q_pipeline_.release(q_.stage());
  }

  // All lanes have read the work tile before lane 0 releases it.
  __device__ __forceinline__ void release_work_tile(uint32_t stage) const {
    __syncwarp();
    if (arrives()) at_.work_tile_pipeline().release(stage);
  }

  // ---- Key blocks ----

  __device__ __forceinline__ KvState next_kv() {
    const KvState at = kv_;
    kv_.advance();
    return at;
  }

  __device__ __forceinline__ void wait_for(KvState at) const { at_.kv_pipeline().wait_full(at); }

  // Asks for both before waiting for either: most often both are there.
  __device__ __forceinline__ void wait_for(KvState k, KvState v) const {
    const bool k_is_full = at_.kv_pipeline().is_full(k);
    const bool v_is_full = at_.kv_pipeline().is_full(v);
    if (k_is_full && v_is_full) return;
    at_.kv_pipeline().wait_full(k);
    at_.kv_pipeline().wait_full(v);
  }

  __device__ __forceinline__ void release_kv(KvState at) const {
    if (arrives()) at_.kv_pipeline().release(at.stage());
  }

  // A stage may only be released once it is full.
  __device__ __forceinline__ void release_unread(KvState at) const {
    wait_for(at);
    release_kv(at);
  }

  // The V of the block before is still in the pipeline, and nobody's.
  __device__ __forceinline__ void expect_v() { has_delayed_v_ = true; }
  __device__ __forceinline__ void expect_no_v() { has_delayed_v_ = false; }
  __device__ __forceinline__ void release_delayed_v() {
    if (has_delayed_v_) release_unread(next_kv());
    has_delayed_v_ = false;
  }

  // ---- Descriptors for products ----

  // To be at hand before the turn comes: what follows it is time without products.
  __device__ __forceinline__ uint32_t q_operand() const {
    constexpr tile::TileLayout kQ = C.q_tile();
    return uniform(
        tile::k_major_low(at_.q(q_.stage()) + warpgroup_ * kRowsPerWarpgroup * kQ.row_bytes()));
  }
  // This warp's rows of the current tile's Q.
  __device__ __forceinline__ uint32_t q_of_warp() const {
    const uint32_t warp = threadIdx.x / kWarpSize - kWarpsPerWarpgroup;
    return at_.q(q_.stage()) + warp * kRowsPerWarp * C.q_tile().row_bytes();
  }
  __device__ __forceinline__ uint32_t k_operand(KvState k) const {
    return tile::k_major_low(at_.kv(uniform_stage(k.stage())));
  }
  __device__ __forceinline__ uint32_t v_operand(KvState v) const {
    const uint32_t address = at_.kv(uniform_stage(v.stage()));
    return C.e4m3 ? tile::k_major_low(address) : tile::mn_major_low(C.v_tile(), address);
  }

 private:
  // Of its warp's lanes, this one.
  static __device__ __forceinline__ bool arrives() {
    return ptx::kEveryLaneArrives || threadIdx.x % kWarpSize == 0;
  }

  const SmemAddresses<C> at_;
  const Pipeline<C.q_stages> q_pipeline_;  // this warpgroup's
  const int warpgroup_;

  KvState kv_;
  WorkTileState work_tile_ = WorkTileState::before_start();                  // the current tile's
  PipelineState<C.q_stages> q_ = PipelineState<C.q_stages>::before_start();  // the current tile's
  bool has_delayed_v_ = false;
};

}  // namespace fa3::hopper
