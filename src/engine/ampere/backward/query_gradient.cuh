// SPDX-License-Identifier: Apache-2.0
// A step's dQ = dS K, of which every warp of both sides has a part (DqLayout), added to sums in
// global memory. In deterministic calls key blocks add one after the other, in one order: a counter
// for each block and side, whose warps add to the same elements in every CTA.
#pragma once

#include "engine/ampere/backward/dq_sums.cuh"
#include "engine/ampere/backward/query_block.h"
#include "engine/ampere/tile/products.cuh"
#include "engine/cuda/ptx/sync.cuh"

namespace fa3::ampere {

enum class Side : int { kValues, kKeys };

// meanwhile: of multiply_atb().
template <BackwardConfig C, Side S, class Meanwhile>
__device__ __forceinline__ void add_dq(const BackwardParams& params, const KeyBlockWork& work,
                                       uint32_t smem, const QueryBlock<C>& block,
                                       const Meanwhile& meanwhile) {
  using Smem = BackwardSmem<C>;
  constexpr DqLayout kDq = C.dq();
  constexpr auto kBarrier =
      int(S == Side::kValues ? BackwardBarrier::kValues : BackwardBarrier::kKeys);
  const int warp = int(thread_in_block()) / kWarpSize, lane = int(thread_in_block()) % kWarpSize;
  DqAccumulators<kDq> dq;
  multiply_atb<C.element, C.block_n, kDq.row_warps(), kDq.column_warps()>(
      dq, ChunksFirst<C.ds_tile()>(smem + Smem::kDs, 0, kDq.row_warp(warp)),
      RowsFirst<C.k_tile()>(smem + Smem::kK, 0, kDq.column_warp(warp)), meanwhile);
  const QueryScratch& scratch = params.rows.scratch;
  const int64_t number = scratch.numbers.block(work.scratch, block.head, block.m_block);
  int* const counter = scratch.dq_semaphore + (number * kSides + int(S));
  const bool first_thread = thread_in_block() % kThreadsOfSide == 0;
  if (scratch.dq_semaphore) {
    if (first_thread) {
      const int before = dq_order<C>(params, work, block.head, block.m_block);
      while (ld_acquire(counter) < before) {
      }
    }
    bar_sync(kBarrier, kThreadsOfSide);
  }
  for_each_sum<kDq>(dq, scratch.dq_accum + dq_place<kDq>(number, warp, lane),
                    [](float sum, float* to) { atomicAdd(to, sum); });
  if (scratch.dq_semaphore) {
    bar_sync(kBarrier, kThreadsOfSide);
    if (first_thread) add_release(counter, 1);
  }
}

}  // namespace fa3::ampere
