// SPDX-License-Identifier: Apache-2.0
// Warpgroup 0: dQ += dS K, block by block of queries, added up in global memory by all key blocks
// straight from registers. It is a warpgroup of its own, so that those of dK and dV never wait for dQ,
// and its tile needs no shared memory, which Q and dO use for more stages: 3 to 5% ahead of sharing dQ
// out among them, measured with prototypes at 2k and 8k. One thread of it loads for the whole thread
// block: K and V once, then Q and dO by turns, each with its row statistics. Next: key_gradients.cuh.
#pragma once

#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/piece/roles.cuh"
#include "engine/hopper/ptx/bulk.cuh"
#include "engine/hopper/ptx/grid.cuh"
#include "engine/hopper/ptx/reduce.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/ptx/tma.cuh"
#include "engine/hopper/ptx/turns.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

// What the one loading thread does.
template <BackwardConfig C>
class QueryLoader {
 public:
  __device__ __forceinline__ QueryLoader(const BackwardParams& params, BackwardAddresses<C> at,
                                         const KeyBlockWork<C>& work)
      : params_(params),
        at_(at),
        work_(work),
        block_(work.first_queries()),
        left_(work.num_steps()) {}

  // Keys first: preprocess may still be at work on what the queries need.
  __device__ __forceinline__ void load_keys() {
    load(k_map(), C.k_layout(), at_.k(), at_.k_once().full(0), 0, work_.keys());
    load(v_map(), C.v_layout(), at_.v(), at_.v_once().full(0), 0, work_.keys());
  }

  __device__ __forceinline__ void load_first_queries() {
#pragma unroll 1
    for (int i = 0; i < C.stages; ++i) load_next_queries();
  }

  // Into the slots of the oldest step, which must be free.
  __device__ __forceinline__ void load_next_queries() {
    if (left_ == 0) return;
    --left_;
    constexpr uint32_t kStatisticsBytes = C.block_m * sizeof(float);
    const uint32_t slot = cursor_.slot();
    const ptx::TileCoordinates queries = work_.queries(block_);
    const int64_t row = work_.scratch_block(block_) * C.block_m;

    load(q_map(), C.q_layout(), at_.q(slot), at_.q_ring().full(slot), kStatisticsBytes, queries);
    ptx::cp_async_bulk_load(at_.lse(slot), params_.scratch.lse_log2 + row, kStatisticsBytes,
                            at_.q_ring().full(slot));
    load(d_o_map(), C.d_o_layout(), at_.d_o(slot), at_.d_o_ring().full(slot), kStatisticsBytes,
         queries);
    ptx::cp_async_bulk_load(at_.delta(slot), params_.scratch.delta + row, kStatisticsBytes,
                            at_.d_o_ring().full(slot));
    cursor_.advance();
    block_.advance(work_.steps());
  }

 private:
  // A tile, one copy a slab, and `more_bytes` to come beside it. What lies outside the tensor arrives
  // as zeros and counts like the rest.
  __device__ __forceinline__ void load(const tile::ClippedMap& map, tile::TileLayout layout,
                                       uint32_t smem, uint32_t barrier, uint32_t more_bytes,
                                       ptx::TileCoordinates from) {
    ptx::mbarrier_arrive_expect_tx(barrier, layout.bytes() + more_bytes);
#pragma unroll 1
    for (int slab = 0; slab < layout.slabs(); ++slab) {
      from.column = slab * layout.slab_columns();
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
  const KeyBlockWork<C>& work_;
  QueryBlock block_;
  int left_;  // steps to load
  RingCursor<C.stages> cursor_;
};

template <BackwardConfig C>
class QueryGradient {
 public:
  __device__ __forceinline__ QueryGradient(const BackwardParams& params, BackwardAddresses<C> at,
                                           const KeyBlockWork<C>& work)
      : params_(params), at_(at), work_(work), loader_(params, at, work) {}

  __device__ __forceinline__ void run() {
    const bool loads = thread_in_block() < kWarpSize && ptx::elect_sync();
    if (loads) loader_.load_keys();
    ptx::griddepcontrol_wait();
    if (loads) loader_.load_first_queries();
    __syncwarp();

    at_.k_once().wait_full({});
    const QuerySteps steps = work_.steps();
    const int num_steps = work_.num_steps();
    QueryBlock block = work_.first_queries();
    RingCursor<C.ds_slots> ds;
    for (int step = 0; step < num_steps; ++step) {
      at_.ds_ring().wait_full(ds);
      float* const chunk =
          params_.scratch.dq_sum + work_.scratch_block(block) * C.dq_parts().chunk_floats();
#pragma unroll C.dq_parts().parts() <= 2 ? 2 : 1  // more do not fit the registers
      for (int part = 0; part < C.dq_parts().parts(); ++part) {
        float dq[kPartFloats];
        issue_product(dq, ds.slot(), part);
        if (part == 0) {  // under the product
          // Whoever has written this dS has done with Q and dO of the step before. No other word of it
          // is needed.
          if (loads && step > 0) loader_.load_next_queries();
          __syncwarp();
          if (params_.scratch.turns) take_turn(block);
        }
        ptx::wgmma_wait_group<0>();
        if (part + 1 == C.dq_parts().parts()) release(ds);
        if (work_.has_rows(block.m_block, part)) add(dq, chunk, part);
      }
      ds.advance();
      block.advance(steps);
    }
    if (last_turn_) give_turn();
  }

 private:
  // Of K, the slab of columns that a part has.
  static constexpr tile::TileLayout kKSlab{C.block_n, C.dq_parts().columns()};
  static constexpr int kPartFloats = C.dq_parts().part_floats() / kWarpgroupSize;

  __device__ __forceinline__ void issue_product(float (&dq)[kPartFloats], uint32_t slot, int part) {
    const tile::TileLayout ds_tile = C.ds_layout();
    const uint32_t ds =
        tile::k_major_low(at_.ds(slot) + C.dq_parts().first_row(part) * ds_tile.row_bytes());
    // Computed at every turn: kept, the descriptors of all steps would not fit the registers.
    const uint32_t k = uniform(tile::mn_major_low(
        kKSlab, at_.k() + part % C.dq_parts().column_parts() * C.k_layout().slab_bytes()));
    ptx::wgmma_fence();
    tile::issue_ab<C.element, C.ds_layout(), kKSlab>(dq, ds, k);
    ptx::wgmma_commit_group();
  }

  // Key blocks add to a query block one after the other, each its own. The turn before is given on only
  // here, when its additions have long arrived.
  __device__ __forceinline__ void take_turn(QueryBlock block) {
    if (last_turn_) give_turn();
    last_turn_ = params_.scratch.turns + work_.scratch_block(block);
    if (thread_in_block() == 0) {
      const int mine = work_.turn(block.m_block);
      while (ptx::ld_acquire(last_turn_) < mine) {
      }
    }
    ptx::bar_sync(int(BackwardBarrier::kQuery), kWarpgroupSize);
  }

  __device__ __forceinline__ void give_turn() {
    ptx::bar_sync(int(BackwardBarrier::kQuery), kWarpgroupSize);
    if (thread_in_block() == 0) ptx::add_release(last_turn_, 1);
  }

  __device__ __forceinline__ void release(RingCursor<C.ds_slots> ds) {
    if (thread_in_block() % kWarpSize == 0) at_.ds_ring().release(ds.slot());
  }

  __device__ __forceinline__ void add(const float (&dq)[kPartFloats], float* chunk, int part) {
    float* const mine = chunk + C.dq_parts().offset(part, 0, int(thread_in_block()));
#pragma unroll
    for (int group = 0; group < C.dq_parts().groups(); ++group) {
      const float(&values)[4] = reinterpret_cast<const float(&)[4]>(dq[group * 4]);
      ptx::red_global_add_f32x4(mine + C.dq_parts().offset(0, group, 0), values);
    }
  }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  const KeyBlockWork<C>& work_;
  QueryLoader<C> loader_;
  int* last_turn_ = nullptr;
};

}  // namespace fa3::hopper
