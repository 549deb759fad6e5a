// SPDX-License-Identifier: Apache-2.0
// Deterministic calls: key blocks add to a query block's dQ one after the other, in one order,
// which a counter in global memory keeps (dq_semaphore). Two threads serve it beside warpgroup 0,
// which would stall for a fence and a load in each step: one waits for the counter, up to
// kSemaphoreDepth steps ahead; the other counts on as soon as the additions of a step have arrived.
// Where registers are left for no helpers, warpgroup 0 does both (DqTurn). Next:
// query_gradient.cuh.
#pragma once

#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/ptx/global.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
class DqSemaphore {
  using Block = typename KeyBlockWork<C>::Block;

 public:
  __device__ __forceinline__ DqSemaphore(const BackwardParams& params, BackwardAddresses<C> at,
                                         const KeyBlockWork<C>& work)
      : params_(params), at_(at), work_(work) {}

  __device__ __forceinline__ void wait_for_all() const {
    ptx::griddepcontrol_wait();  // for the counters' zeros
    PipelineState<C.shape.stages> queries;
    for_each_step([&](Block block, PipelineState<kSemaphoreDepth> cursor) {
      // Its record. dQ's warpgroup does not release the stage before it may add.
      if constexpr (C.block_mask()) at_.q_pipeline().wait_full(queries);
      queries.advance();
      const int before = work_.dq_order(block);
      at_.semaphore_pipeline().wait_empty(cursor);
      while (ptx::ld_acquire(counter(block)) < before) {
      }
      ptx::mbarrier_arrive(at_.semaphore_pipeline().full(cursor.stage()));
    });
  }

  __device__ __forceinline__ void release_all() const {
    for_each_step([&](Block block, PipelineState<kSemaphoreDepth> cursor) {
      at_.added_pipeline().wait_full(cursor);
      ptx::add_release(counter(block), 1);
      at_.semaphore_pipeline().release(cursor.stage());
    });
  }

 private:
  template <class Use>
  __device__ __forceinline__ void for_each_step(const Use& use) const {
    const auto steps = work_.steps();
    Block block = work_.first_queries();
    PipelineState<kSemaphoreDepth> cursor;
#pragma unroll 1
    for (int step = 0; step < work_.num_steps(); ++step) {
      use(block, cursor);
      block.advance(steps);
      cursor.advance();
    }
  }

  __device__ __forceinline__ int* counter(Block block) const {
    return params_.scratch.dq_semaphore + work_.scratch_block(block);
  }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  const KeyBlockWork<C>& work_;
};

// Warpgroup 0's own turns. It counts on for a step under the next one's product: by then the
// additions, for which that waits, have arrived.
template <BackwardConfig C>
class DqTurn {
 public:
  // By all threads.
  __device__ __forceinline__ void wait(const BackwardParams& params, const KeyBlockWork<C>& work,
                                       typename KeyBlockWork<C>::Block block) {
    count_on();
    counter_ = params.scratch.dq_semaphore + work.scratch_block(block);
    const int before = work.dq_order(block);
    while (ptx::ld_acquire(counter_) < before) {
    }
    __syncwarp();
  }

  __device__ __forceinline__ void have_added(bool last) {
    ptx::bar_sync(int(BackwardBarrier::kQueryDone), kWarpgroupSize);
    if (last) count_on();
  }

 private:
  __device__ __forceinline__ void count_on() const {
    if (counter_ != nullptr && thread_in_block() == 0) ptx::add_release(counter_, 1);
    __syncwarp();
  }

  int* counter_ = nullptr;  // of the step before
};
struct NoDqTurn {};

}  // namespace fa3::hopper
