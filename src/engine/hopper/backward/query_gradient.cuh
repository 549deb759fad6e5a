// SPDX-License-Identifier: Apache-2.0
// Warpgroup 0: dQ += dS K, block by block of queries. All key blocks add to dQ in global memory,
// straight from registers; two of a pair to half of the columns each. The warpgroup is dQ's alone:
// those of dK and dV never wait for dQ, and dQ's tile takes no shared memory, which Q and dO use
// for more stages. Measured with prototypes at 2k and 8k: 3 to 5% ahead of dQ in parts by the
// warpgroups of dK and dV. Next: key_gradients.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/backward/add_accum.cuh"
#include "engine/hopper/backward/dq_semaphore.cuh"
#include "engine/hopper/backward/key_block_pair.cuh"
#include "engine/hopper/backward/query_loader.cuh"
#ifdef FA3_SCORE_FUNCTION
#include "engine/hopper/backward/scores/captured_tile.cuh"
#endif
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/gemm.cuh"
#include "engine/hopper/tile/gemm_transposed.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
class CapturedTileLoader;  // of kernels with a score function
template <BackwardConfig C>
struct NoCapturedTileLoader {
  __device__ __forceinline__ NoCapturedTileLoader(const BackwardParams&, BackwardAddresses<C>,
                                                  const KeyBlockWork<C>&) {}
};

template <BackwardConfig C>
class QueryGradient {
 public:
  __device__ __forceinline__ QueryGradient(const BackwardParams& params, BackwardAddresses<C> at,
                                           const KeyBlockWork<C>& work)
      : params_(params), at_(at), work_(first_key_block<C>(work)), loader_(params, at, work) {}

  __device__ __forceinline__ void run() {
    const bool loads = !C.shape.helpers && thread_in_block() < kWarpSize && ptx::elect_sync();
    if (loads) loader_.load_inputs();
    if constexpr (kLoadsTile) {
      if (loads) captured_.load_first();
    }
    ptx::griddepcontrol_wait();  // for dQ's zeros too
    if (loads) loader_.load_first_queries();
    __syncwarp();

    at_.k_pipeline().wait_full({});
    Cursors cursors;
    if constexpr (C.persistent()) {
      KeyBlockWalk<C> walk;
      do {
        add_key_block(loads, walk, cursors);
        __syncwarp();
        if (thread_in_block() % kWarpSize == 0) at_.k_pipeline().release(walk.k_stage());
      } while (walk.advance(at_, work_));
    } else {
      add_key_block(loads, {}, cursors);
    }
  }

 private:
  struct Cursors {
    PipelineState<C.shape.ds_stages> ds;
    PipelineState<C.shape.stages> queries;  // the step before
    PipelineState<kSemaphoreDepth> semaphore;
  };

  __device__ __forceinline__ void add_key_block(bool loads, const KeyBlockWalk<C>& walk,
                                                Cursors& cursors) {
    auto& [ds, queries, semaphore] = cursors;
    const auto steps = work_.steps();
    const int num_steps = work_.num_steps();
    typename KeyBlockWork<C>::Block block = work_.first_queries();
    for (int step = 0; step < num_steps; ++step) {
      at_.ds_pipeline().wait_full(ds);
      float* const dq_block =
          params_.scratch.dq_accum + work_.scratch_block(block) * C.dq_accum().block_floats();
#pragma unroll C.dq_parts() <= 2 ? 2 : 1  // more do not fit the registers
      for (int i = 0; i < C.dq_parts(); ++i) {
        int part = i;
        if constexpr (C.pairs()) part += first_part();
        float dq[kPartFloats];
        issue_product(dq, ds, at_.k(walk.k_stage()), part, i);
        if (i == 0) {  // under the product
          // The warpgroups that wrote this dS no longer read Q and dO of the step before.
          const bool any_before = walk.has_step_before(step, block);
          if (loads && any_before) loader_.load_next_queries();
#ifdef FA3_SCORE_FUNCTION
          if constexpr (cuda::kScore.stores_gradient) {
            if (thread_in_block() == 0) {
              store_captured_gradient<C>(params_, at_.ds(ds.stage()),
                                         captured_place<C, true>(params_, work_, block));
            }
          }
#endif
          if (C.shape.helpers && any_before) release_queries(queries);
          if constexpr (C.persistent()) {  // nor, at the last step, V
            if (step + 1 == num_steps && thread_in_block() == 0) at_.v_pipeline().release(0);
          }
          __syncwarp();
          if constexpr (C.serves_semaphore()) {
            if (hopper::adds_in_order<C>(params_)) own_turn_.wait(params_, work_, block);
          } else if (adds_in_order()) {
            at_.semaphore_pipeline().wait_full(semaphore);
          }
        }
        const bool has_rows = work_.has_rows(block, part);  // under the product, too
        ptx::wgmma_wait_group<0>();
        if (i + 1 == C.dq_parts()) {
          if constexpr (cuda::kScore.stores_gradient) {
            if (thread_in_block() == 0) ptx::cp_async_bulk_wait_group_read<0>();
          }
          release(ds, step + C.shape.ds_stages < num_steps);
          if constexpr (kLoadsTile) {
            if (loads) captured_.load_next();
            __syncwarp();
          }
        }
        if (has_rows) {
          add_part<C.dq_accum()>(dq_block, part, dq, int(thread_in_block()));
        }
      }
      if constexpr (C.serves_semaphore()) {
        if (hopper::adds_in_order<C>(params_)) own_turn_.have_added(step + 1 == num_steps);
      } else if (adds_in_order()) {
        arrive_added(semaphore);
      }
      ds.advance();
      semaphore.advance();
      block.advance(steps);
    }
  }

  // A part's slab of K's columns.
  static constexpr tile::TileLayout kKSlab{C.shape.block_n, C.dq_accum().columns()};
  static constexpr int kPartFloats = C.dq_accum().floats();

  // A pair's CTA has half of the columns.
  __device__ __forceinline__ int first_part() const {
    return int(ptx::cluster_rank()) * C.dq_parts();
  }

  // Part `i` of this CTA's.
  __device__ __forceinline__ void issue_product(float (&dq)[kPartFloats],
                                                PipelineState<C.shape.ds_stages> ds, uint32_t k,
                                                int part, int i) {
    const uint32_t first_row = C.dq_accum().first_row(part) * C.ds_tile().row_bytes();
    const int slab = part % C.dq_accum().column_parts();
    issue_product(dq, at_.ds(ds.stage()) + first_row, k, slab, false);
    if constexpr (C.pairs()) {  // the other's dS may come under this product
      if (i == 0) ptx::wgmma_commit_group();
      if (i == 0) KeyBlockPair<C>(at_).wait_full(ds);
      issue_product(dq, at_.pair_ds(ds.stage()) + first_row, at_.pair_k(), i, true);
    }
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void issue_product(float (&dq)[kPartFloats], uint32_t ds, uint32_t k,
                                                int slab, bool add) {
    const uint32_t ds_low = tile::k_major_low(at_.in_cta(ds));
    // Computed for each part: the descriptors of all products would not fit the registers.
    const uint32_t k_low =
        uniform(tile::mn_major_low(kKSlab, at_.in_cta(k) + slab * C.k_tile().slab_bytes()));
    ptx::wgmma_fence();
    if constexpr (C.dq_accum().transposed()) {
      tile::issue_atbt<C.element, kKSlab, C.ds_tile()>(dq, k_low, ds_low);
    } else {
      tile::issue_ab<C.element, C.ds_tile(), kKSlab>(dq, ds_low, k_low, add);
    }
  }

  __device__ __forceinline__ bool adds_in_order() const {
    return C.shape.helpers && hopper::adds_in_order<C>(params_);
  }

  __device__ __forceinline__ void arrive_added(PipelineState<kSemaphoreDepth> state) {
    __syncwarp();
    if (thread_in_block() % kWarpSize == 0) {
      ptx::mbarrier_arrive(at_.added_pipeline().full(state.stage()));
    }
  }

  // Where dK and dV are split, their warpgroups release Q and dO themselves; others may dO.
  __device__ __forceinline__ void release_queries(PipelineState<C.shape.stages>& queries) {
    if constexpr (!C.splits_dkv()) {
      if (thread_in_block() == 0) {
        at_.q_pipeline().release(queries.stage());
        if (!C.d_o_goes_with_ds()) at_.d_o_pipeline().release(queries.stage());
      }
      queries.advance();
    }
  }

  // `again`: there is another dS for the stage.
  __device__ __forceinline__ void release(PipelineState<C.shape.ds_stages> ds, bool again) {
    if (thread_in_block() % kWarpSize != 0) return;
    if constexpr (C.pairs()) {
      KeyBlockPair<C>(at_).release(ds.stage(), again);
    } else {
      at_.ds_pipeline().release(ds.stage());
    }
  }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  OwnKeyBlock<C> work_;
  QueryLoader<C> loader_;  // where there are no helpers
  [[no_unique_address]] std::conditional_t<C.serves_semaphore(), DqTurn<C>, NoDqTurn> own_turn_;
  [[no_unique_address]] std::conditional_t<kLoadsTile, CapturedTileLoader<C>,
                                           NoCapturedTileLoader<C>>
      captured_{params_, at_, work_};  // likewise
};

}  // namespace fa3::hopper
