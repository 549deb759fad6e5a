// SPDX-License-Identifier: Apache-2.0
// One consumer warpgroup's place in the pipelines: which stages of K and V, which part of Q and
// which work tile it reads, and when it releases each. A warp releases a stage by its lane 0, once
// all its lanes are done with it. Next: consumer_state.cuh.
#pragma once

#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/fence.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

template <Kernel C>
class ConsumerStages {
 public:
  using KvState = PipelineState<C.shape.kv_stages>;

  __device__ __forceinline__ ConsumerStages(SmemAddresses<C> at, int warpgroup)
      : at_(at), q_pipeline_(at.q_pipeline(warpgroup)), warpgroup_(warpgroup) {}

  __device__ __forceinline__ SmemAddresses<C> at() const { return at_; }

  // ---- Work tiles and their parts of Q ----

  // Returns the stage of the next work tile, which take_work_tile() makes the current one.
  __device__ __forceinline__ uint32_t wait_for_work_tile() const {
    at_.work_tile_pipeline().wait_full(work_tile_.next());
    return work_tile_.next().stage();
  }
  __device__ __forceinline__ void take_work_tile() { work_tile_.advance(); }
  __device__ __forceinline__ void take_q() { q_.advance(); }

  __device__ __forceinline__ uint32_t work_tile() const { return work_tile_.stage(); }
  __device__ __forceinline__ uint32_t previous_work_tile() const {
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

  // Looks at both before it waits for either: most often both are full.
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

  // Whether the V of the block before is still in the pipeline and will not be multiplied.
  __device__ __forceinline__ void expect_v() { has_delayed_v_ = true; }
  __device__ __forceinline__ void expect_no_v() { has_delayed_v_ = false; }
  __device__ __forceinline__ void release_delayed_v() {
    if (has_delayed_v_) release_unread(next_kv());
    has_delayed_v_ = false;
  }

  // ---- Tiles of a captured tensor, one for each key block ----

  // The next one's stage, once it is full.
  __device__ __forceinline__ uint32_t wait_for_captured() const {
    at_.captured_pipeline().wait_full(captured_);
    return captured_.stage();
  }
  // All lanes have read it.
  __device__ __forceinline__ void release_captured() {
    __syncwarp();
    if (arrives()) at_.captured_pipeline().release(captured_.stage());
    captured_.advance();
  }
  // Another warpgroup's block has the next one.
  __device__ __forceinline__ void pass_captured() {
    if constexpr (kLoadsTile) {
      wait_for_captured();
      release_captured();
    }
    if constexpr (kAddsKeyTerm) {
      wait_for_key_terms();
      release_key_terms();
    }
  }

  // ---- Terms of a block's keys, likewise ----

  __device__ __forceinline__ void wait_for_key_terms() const {
    at_.key_term_pipeline().wait_full(key_terms_);
  }
  __device__ __forceinline__ uint32_t key_terms() const { return key_terms_.stage(); }
  __device__ __forceinline__ void release_key_terms() {
    if (arrives()) at_.key_term_pipeline().release(key_terms_.stage());
    key_terms_.advance();
  }

  // ---- Descriptors for products ----

  // Computed before the warpgroup's turn comes: behind it, tensor cores would wait for it.
  __device__ __forceinline__ uint32_t q_operand() const {
    constexpr tile::TileLayout kQ = C.tiles_in_smem().q;
    return uniform(
        tile::k_major_low(at_.q(q_.stage()) + warpgroup_ * kRowsPerWarpgroup * kQ.row_bytes()));
  }
  // This warp's rows of the current tile's Q.
  __device__ __forceinline__ uint32_t q_of_warp() const {
    const uint32_t warp = threadIdx.x / kWarpSize - kWarpsPerWarpgroup;
    return at_.q(q_.stage()) + warp * kRowsPerWarp * C.tiles_in_smem().q.row_bytes();
  }
  __device__ __forceinline__ uint32_t k_operand(KvState k) const {
    return tile::k_major_low(at_.kv(uniform_stage(k.stage())));
  }
  __device__ __forceinline__ uint32_t v_operand(KvState v) const {
    const uint32_t address = at_.kv(uniform_stage(v.stage()));
    return C.e4m3() ? tile::k_major_low(address) : tile::mn_major_low(C.tiles_in_smem().v, address);
  }

 private:
  // Whether this lane arrives for its warp.
  static __device__ __forceinline__ bool arrives() {
    return ptx::kEveryLaneArrives || threadIdx.x % kWarpSize == 0;
  }

  const SmemAddresses<C> at_;
  const Pipeline<C.shape.q_stages> q_pipeline_;  // this warpgroup's
  const int warpgroup_;

  KvState kv_;
  WorkTileState work_tile_ = WorkTileState::before_start();  // the current tile's
  PipelineState<C.shape.q_stages> q_ =
      PipelineState<C.shape.q_stages>::before_start();  // the current tile's
  bool has_delayed_v_ = false;
  struct NoState {};
  [[no_unique_address]] std::conditional_t<kLoadsTile, PipelineState<C.captured_stages()>, NoState>
      captured_;
  [[no_unique_address]] std::conditional_t<kAddsKeyTerm, PipelineState<kKeyTermStages>, NoState>
      key_terms_;
};

}  // namespace fa3::hopper
