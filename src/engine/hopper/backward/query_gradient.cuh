// SPDX-License-Identifier: Apache-2.0
// Warpgroup 0: dQ += dS K, block by block of queries, added up in global memory by all key blocks
// straight from registers. It is a warpgroup of its own, so that those of dK and dV never wait for
// dQ, and its tile needs no shared memory, which Q and dO use for more stages: 3 to 5% ahead of
// sharing dQ out among them, measured with prototypes at 2k and 8k. Next: key_gradients.cuh.
#pragma once

#include "engine/hopper/backward/add_sums.cuh"
#include "engine/hopper/backward/query_loader.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/grid.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
class QueryGradient {
 public:
  __device__ __forceinline__ QueryGradient(const BackwardParams& params, BackwardAddresses<C> at,
                                           const KeyBlockWork<C>& work)
      : params_(params), at_(at), work_(work), loader_(params, at, work) {}

  __device__ __forceinline__ void run() {
    const bool loads = !C.helpers && thread_in_block() < kWarpSize && ptx::elect_sync();
    if (loads) loader_.load_keys();
    ptx::griddepcontrol_wait();  // for dQ's zeros too
    if (loads) loader_.load_first_queries();
    __syncwarp();

    at_.k_once().wait_full({});
    const QuerySteps steps = work_.steps();
    const int num_steps = work_.num_steps();
    QueryBlock block = work_.first_queries();
    PipelineState<C.ds_stages> ds;
    PipelineState<C.stages> queries;  // of the step before
    PipelineState<kSemaphoreDepth> turn;
    for (int step = 0; step < num_steps; ++step) {
      at_.ds_pipeline().wait_full(ds);
      float* const chunk =
          params_.scratch.dq_sum + work_.scratch_block(block) * C.dq_parts().chunk_floats();
#pragma unroll C.dq_parts().parts() <= 2 ? 2 : 1  // more do not fit the registers
      for (int part = 0; part < C.dq_parts().parts(); ++part) {
        float dq[kPartFloats];
        issue_product(dq, ds.stage(), part);
        if (part == 0) {  // under the product
          // Whoever has written this dS has done with Q and dO of the step before.
          if (loads && step > 0) loader_.load_next_queries();
          if (C.helpers && step > 0) release_queries(queries);
          __syncwarp();
          if (adds_by_turns()) at_.semaphore_pipeline().wait_full(turn);
        }
        const bool has_rows = work_.has_rows(block.m_block, part);  // under the product, too
        ptx::wgmma_wait_group<0>();
        if (part + 1 == C.dq_parts().parts()) release(ds);
        if (has_rows) {
          add_part<C.dq_parts()>(chunk, part, dq, int(thread_in_block()));
        }
      }
      if (adds_by_turns()) say_added(turn);
      ds.advance();
      turn.advance();
      block.advance(steps);
    }
  }

 private:
  // Of K, the slab of columns that a part has.
  static constexpr tile::TileLayout kKSlab{C.block_n, C.dq_parts().columns()};
  static constexpr int kPartFloats = C.dq_parts().part_floats() / kWarpgroupSize;

  __device__ __forceinline__ void issue_product(float (&dq)[kPartFloats], uint32_t stage,
                                                int part) {
    const tile::TileLayout ds_tile = C.ds_layout();
    const uint32_t ds =
        tile::k_major_low(at_.ds(stage) + C.dq_parts().first_row(part) * ds_tile.row_bytes());
    // Computed at every turn: kept, the descriptors of all steps would not fit the registers.
    const uint32_t k = uniform(tile::mn_major_low(
        kKSlab, at_.k() + part % C.dq_parts().column_parts() * C.k_layout().slab_bytes()));
    ptx::wgmma_fence();
    tile::issue_ab<C.element, C.ds_layout(), kKSlab>(dq, ds, k);
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ bool adds_by_turns() const {
    return C.helpers && params_.scratch.dq_semaphore;
  }

  __device__ __forceinline__ void say_added(PipelineState<kSemaphoreDepth> turn) {
    __syncwarp();
    if (thread_in_block() % kWarpSize == 0) {
      ptx::mbarrier_arrive(at_.added_pipeline().full(turn.stage()));
    }
  }

  // Split sides release Q and dO themselves.
  __device__ __forceinline__ void release_queries(PipelineState<C.stages>& queries) {
    if constexpr (!C.splits_sides()) {
      if (thread_in_block() == 0) {
        at_.q_pipeline().release(queries.stage());
        at_.d_o_pipeline().release(queries.stage());
      }
      queries.advance();
    }
  }

  __device__ __forceinline__ void release(PipelineState<C.ds_stages> ds) {
    if (thread_in_block() % kWarpSize == 0) at_.ds_pipeline().release(ds.stage());
  }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  const KeyBlockWork<C>& work_;
  QueryLoader<C> loader_;  // where there are no helpers
};

}  // namespace fa3::hopper
