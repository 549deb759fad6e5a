// SPDX-License-Identifier: Apache-2.0
// TMA loads of plain ranges of bytes into shared memory, and TMA stores of tiles from it (PTX ISA,
// "cp.async.bulk"). Addresses and sizes are multiples of 16 bytes. A load completes on an mbarrier.
// Stores are committed in groups, and the thread that issued them waits for the groups.
#pragma once

#include "engine/hopper/ptx/tma.cuh"

namespace fa3::hopper::ptx {

__device__ __forceinline__ void cp_async_bulk_load(uint32_t smem, const void* global,
                                                   uint32_t bytes, uint32_t barrier) {
  cuda::disturb();
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(smem),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

// What lies outside the tensor is not written.
__device__ __forceinline__ void cp_async_bulk_tensor_store(const CUtensorMap& map,
                                                           TileCoordinates at, uint32_t smem) {
  cuda::disturb();
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group"
      " [%0, {%1, %6, %2, %3, %4}], [%5];" ::"l"(&map),
      "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(smem), "r"(at.inner)
      : "memory");
}

__device__ __forceinline__ void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most Pending of this thread's newest groups still read shared memory.
template <int Pending>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
  cuda::disturb();
}

// Waits until at most Pending of this thread's newest groups have not arrived in global memory.
template <int Pending>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
  cuda::disturb();
}

}  // namespace fa3::hopper::ptx
