// SPDX-License-Identifier: Apache-2.0
// The thread that loads for the whole CTA: K and V once, then Q and dO of each step with their row
// statistics. A helper, or a thread of warpgroup 0. Next: query_gradient.cuh.
#pragma once

#include <utility>

#include "engine/hopper/backward/key_block_walk.cuh"
#include "engine/hopper/ptx/bulk.cuh"
#include "engine/hopper/ptx/cluster.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/ptx/tma.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
class QueryLoader {
 public:
  __device__ __forceinline__ QueryLoader(const BackwardParams& params, BackwardAddresses<C> at,
                                         const KeyBlockWork<C>& work)
      : params_(params),
        at_(at),
        work_(first_key_block<C>(work)),
        block_(work_.first_loaded()),
        left_(work_.num_steps()) {}

  // For a helper.
  __device__ __forceinline__ void run() {
    load_inputs();
    ptx::griddepcontrol_wait();
    load_first_rows();
    load_other_queries();
    if constexpr (C.persistent()) {
      while (load_next_key_block()) load_other_queries();
    }
  }

  // By the thread that has initialised the barriers, before the others wait for it.
  __device__ __forceinline__ void load_k() const {
    const uint32_t barrier = at_.k_pipeline().full(0);
    if constexpr (!C.pairs()) {
      load(k_map(), C.k_tile(), at_.k(), barrier, 0, work_.keys());
    } else {
      constexpr tile::TileLayout kHalf{C.k_tile().rows, C.k_tile().columns / 2};
      load(k_map(), C.k_tile(), at_.k(), barrier, kHalf.bytes(), work_.keys());
      copy(k_map(), kHalf, at_.pair_k(), barrier, work_.keys_of_other(),
           int(ptx::cluster_rank()) * kHalf.columns);
    }
  }

  // What preprocess does not write; V behind the first Q, for which S waits.
  __device__ __forceinline__ void load_inputs() {
    if (left_ == 0) return;
    load_q(next_step());
    load(v_map(), C.v_tile(), at_.v(), at_.v_pipeline().full(0), 0, work_.keys());
  }

  // The rest of the first step's.
  __device__ __forceinline__ void load_first_rows() {
    if (left_ > 0) load_rows(next_step());
  }

  __device__ __forceinline__ void load_first_queries() {
    load_first_rows();
#pragma unroll 1
    for (int i = 1; i < C.shape.stages; ++i) load_next_queries();
  }

  // Into the stages of the oldest step. Without helpers the caller knows that they are free.
  __device__ __forceinline__ void load_next_queries() {
    if (left_ == 0) return;
    const Step step = next_step();  // before it waits
    load_q(step);
    load_rows(step);
  }

 private:
  struct Step {
    ptx::TileCoordinates queries;
    int64_t row;  // in the scratch
  };
  static constexpr uint32_t kStatisticsBytes = C.shape.block_m * sizeof(float);

  __device__ __forceinline__ Step next_step() const {
    return {work_.queries(block_), work_.scratch_block(block_) * C.shape.block_m};
  }

  __device__ __forceinline__ void load_q(const Step& step) const {
    const uint32_t stage = cursor_.stage();
    if constexpr (C.shape.helpers) at_.q_pipeline().wait_empty(cursor_);
    if constexpr (C.block_mask()) work_.record(block_);
    constexpr int kStatistics = C.splits_dkv() ? 2 : 1;
    load(q_map(), C.q_tile(), at_.q(stage), at_.q_pipeline().full(stage),
         kStatistics * kStatisticsBytes, step.queries);
  }

  // dO and both statistics.
  __device__ __forceinline__ void load_rows(const Step& step) {
    const uint32_t stage = cursor_.stage();
    ptx::cp_async_bulk_load(at_.lse(stage), params_.scratch.lse_log2 + step.row, kStatisticsBytes,
                            at_.q_pipeline().full(stage));
    if constexpr (C.splits_dkv()) {
      ptx::cp_async_bulk_load(at_.delta(stage), params_.scratch.delta + step.row, kStatisticsBytes,
                              at_.q_pipeline().full(stage));
      load_d_o(step.queries);
    } else {
      const uint32_t d_o_stage = d_o_cursor().stage();
      if constexpr (C.shape.helpers) at_.d_o_pipeline().wait_empty(d_o_cursor());
      load(d_o_map(), C.d_o_tile(), at_.d_o(d_o_stage), at_.d_o_pipeline().full(d_o_stage),
           kStatisticsBytes, step.queries);
      ptx::cp_async_bulk_load(at_.delta(d_o_stage), params_.scratch.delta + step.row,
                              kStatisticsBytes, at_.d_o_pipeline().full(d_o_stage));
      if constexpr (C.d_o_goes_with_ds()) d_o_cursor_.advance();
    }
    --left_;
    cursor_.advance();
    block_.advance(work_.steps());
  }

  __device__ __forceinline__ void load_other_queries() {
#pragma unroll 1
    while (left_ > 0) load_next_queries();
  }

  // A persistent CTA's: K, the first queries and V, each when its stage is free. There may be none:
  // its K says so, too.
  __device__ __forceinline__ bool load_next_key_block() {
    if (work_.num_steps() > 0) v_cursor_.advance();
    k_cursor_.advance();
    const int tile = draw();
    if constexpr (C.block_mask()) {
      work_.describe_next(tile);
    } else {
      ptx::st_shared_b32(at_.drawn_tile(++lap_), uint32_t(tile));
      if (tile >= 0) work_.move_to(tile);
    }
    block_ = work_.first_loaded();
    left_ = tile >= 0 ? work_.num_steps() : 0;
    const uint32_t k_full = at_.k_pipeline().full(k_cursor_.stage());
    at_.k_pipeline().wait_empty(k_cursor_);
    if (left_ == 0) {
      ptx::mbarrier_arrive(k_full);
      return tile >= 0;
    }
    load(k_map(), C.k_tile(), at_.k(k_cursor_.stage()), k_full, 0, work_.keys());
    load_q(next_step());
    at_.v_pipeline().wait_empty(v_cursor_);
    load(v_map(), C.v_tile(), at_.v(), at_.v_pipeline().full(0), 0, work_.keys());
    load_rows(next_step());
    return true;
  }

  // Tiles come from the first of dQ's counters, for which kernels without an order have no use.
  __device__ __forceinline__ int draw() const {
    const int tile = int(gridDim.x) + atomicAdd(params_.scratch.dq_semaphore, 1);
    return tile < params_.order.num_tiles() ? tile : -1;
  }

  // Where dO comes whole.
  __device__ __forceinline__ PipelineState<C.d_o_stages()> d_o_cursor() const {
    if constexpr (C.d_o_goes_with_ds()) {
      return d_o_cursor_;
    } else {
      return cursor_;
    }
  }

  // dO in parts, where dK and dV are split.
  __device__ __forceinline__ void load_d_o(const ptx::TileCoordinates& from) {
#pragma unroll 1
    for (int part = 0; part < C.d_o_parts(); ++part) {
      const uint32_t stage = d_o_cursor_.stage(), barrier = at_.d_o_pipeline().full(stage);
      at_.d_o_pipeline().wait_empty(d_o_cursor_);
      ptx::mbarrier_arrive_expect_tx(barrier, C.d_o_part().bytes());
      copy(d_o_map(), C.d_o_part(), at_.d_o(stage), barrier, from, part * C.d_o_part().columns);
      d_o_cursor_.advance();
    }
  }

  // A tile, a copy for each slab; `more_bytes` follow for the same barrier. What lies outside the
  // tensor arrives as zeros and counts like the rest.
  __device__ __forceinline__ void load(const tile::ClippedMap& map, tile::TileLayout layout,
                                       uint32_t smem, uint32_t barrier, uint32_t more_bytes,
                                       ptx::TileCoordinates from) const {
    ptx::mbarrier_arrive_expect_tx(barrier, layout.bytes() + more_bytes);
    copy(map, layout, smem, barrier, from);
  }
  __device__ __forceinline__ void copy(const tile::ClippedMap& map, tile::TileLayout layout,
                                       uint32_t smem, uint32_t barrier, ptx::TileCoordinates from,
                                       int first_column = 0) const {
#pragma unroll 1
    for (int slab = 0; slab < layout.slabs(); ++slab) {
      from.column = first_column + slab * layout.slab_columns();
      const CUtensorMap& box_map =
          C.general() ? map.map_of_box(from.inner < layout.rows, from.column) : map.inside;
      ptx::cp_async_bulk_tensor_load(smem + slab * layout.slab_bytes(), box_map, from, barrier);
    }
  }

  __device__ __forceinline__ tile::ClippedMap q_map() const {
    return {params_.q_map, params_.q_outside, params_.columns};
  }
  __device__ __forceinline__ tile::ClippedMap d_o_map() const {
    return {params_.d_o_map, params_.d_o_outside, params_.columns_v};
  }
  __device__ __forceinline__ tile::ClippedMap k_map() const {
    return {params_.k_map, params_.k_outside, params_.columns};
  }
  __device__ __forceinline__ tile::ClippedMap v_map() const {
    return {params_.v_map, params_.v_outside, params_.columns_v};
  }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  uint32_t lap_ = 0;
  OwnKeyBlock<C> work_;  // whose queries it loads
  decltype(std::declval<const KeyBlockWork<C>&>().first_loaded()) block_;
  int left_;  // steps to load
  PipelineState<C.shape.stages> cursor_;
  PipelineState<C.d_o_stages()> d_o_cursor_;  // where those are not Q's
  PipelineState<C.k_stages()> k_cursor_;      // of a persistent CTA, like v_cursor_
  PipelineState<1> v_cursor_;
};

}  // namespace fa3::hopper
