// SPDX-License-Identifier: Apache-2.0
// The main kernel of the backward, as a table of contents: FlashAttention-2's, a CTA for each key
// block, which goes through the query blocks that see it. preprocess.cuh runs before it,
// postprocess.cuh after it.
//
// FlashAttention-2 has all warps compute everything, and P and dS pass through shared memory to
// become operands. Here a step's five products are shared out: the values' side has S and dV, the
// keys' side dP and dK, each half of dQ. Either sums over queries what it holds in registers, so
// these products read one operand from shared memory instead of two; and one side multiplies while
// the other computes exponentials, with no barrier of the whole CTA.
//
//   values   S0 exp P0 dV0 | S1 exp P1 dV1    | dQ0 S2 exp P2 dV2 | dQ1 S3 ...
//   keys            dP0 P0 dS0 dK0 | dQ0 dP1 P1 dS1 dK1 | dQ1 dP2 P2 ...
//
// Next: backward_smem.h, value_side.cuh, key_side.cuh.
#pragma once

#include "engine/ampere/backward/key_side.cuh"
#include "engine/ampere/backward/value_side.cuh"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/smem.cuh"

// nvcc 13.0 writes a namespaced class used as a template argument of a kernel by its mangled name
// into the host stub, and forgets to declare that name.
using _ZN3fa36ampere14BackwardConfigE = fa3::ampere::BackwardConfig;

namespace fa3::ampere {

template <TileLayout Layout>
__device__ __forceinline__ void copy_keys(uint32_t tile, const CopiedRows& from,
                                          const RowBlock& keys, int first_key) {
  copy_block<Layout, kBackwardThreads>(tile, from, keys.batch, keys.head, keys.begin + first_key,
                                       keys.used - first_key);
}

template <BackwardConfig C>
__device__ __forceinline__ void work_on(const BackwardParams& params, const KeyBlockWork& work,
                                        uint32_t smem) {
  if (thread_in_block() < kThreadsOfSide) {
    ValueSide<C> side(params, work, smem);
    side.prefetch();
    cp_async_wait_group<C.stages>();
    bar_sync(int(BackwardBarrier::kKeysThere), kBackwardThreads);
    side.run();
  } else {
    cp_async_wait_group<0>();
    bar_sync(int(BackwardBarrier::kKeysThere), kBackwardThreads);
    KeySide<C>(params, work, smem).run();
  }
}

template <BackwardConfig C>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    backward_kernel(const __grid_constant__ BackwardParams params) {
  using Smem = BackwardSmem<C>;
  unsigned char* const smem = dynamic_smem();
  RowBlock keys = RowBlock::of(params.grid, int(blockIdx.x));
  const int used_blocks = (keys.used + C.block_n - 1) / C.block_n;
  if (params.last_keys_first && keys.block < used_blocks) {
    keys.block = used_blocks - 1 - keys.block;
  }
  int first_key = keys.block * C.block_n;
  if (first_key < keys.used) {
    KeyBlockWork& work = *reinterpret_cast<KeyBlockWork*>(smem + Smem::kWork);
    const uint32_t tiles = cvta_to_shared(smem);
    copy_keys<C.k_tile()>(tiles + Smem::kK, params.k, keys, first_key);
    copy_keys<C.v_tile()>(tiles + Smem::kV, params.v, keys, first_key);
    cp_async_commit_group();
    if (threadIdx.x == 0) {
      work = KeyBlockWork::of(params, keys, first_key, C.block_m, C.block_n);
      work.num_steps = QueryBlock<C>::count(params, work);
    }
    __syncthreads();
    work_on<C>(params, work, tiles);
    first_key += params.grid.blocks * C.block_n;
  }
  // Keys that no query sees, because they are unused or nobody's, have gradients of zero.
  for (; first_key < keys.owned; first_key += params.grid.blocks * C.block_n) {
    const int end = first_key + C.block_n < keys.owned ? first_key + C.block_n : keys.owned;
    clear_rows<kBackwardThreads>(params.dk.tensor, keys, first_key, end);
    clear_rows<kBackwardThreads>(params.dv.tensor, keys, first_key, end);
  }
}

}  // namespace fa3::ampere
