// SPDX-License-Identifier: Apache-2.0
// TMA on plain ranges of bytes, and on tiles out of shared memory (PTX ISA,
// "cp.async.bulk"). Addresses and sizes are multiples of 16 bytes. A load completes on an mbarrier;
// what leaves shared memory is committed in groups, and the thread that issued it waits for them.
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

__device__ __forceinline__ void cp_async_bulk_store(void* global, uint32_t smem, uint32_t bytes) {
  cuda::disturb();
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(smem), "r"(bytes)
               : "memory");
}

// global += shared, float by float, in any order with the additions of others.
__device__ __forceinline__ void cp_reduce_async_bulk_add_f32(float* global, uint32_t smem,
                                                             uint32_t bytes) {
  cuda::disturb();
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
      "r"(smem), "r"(bytes)
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

// Until at most Pending of this thread's newest groups still read shared memory.
template <int Pending>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
  cuda::disturb();
}

// Until at most Pending of this thread's newest groups have not arrived in global memory.
template <int Pending>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
  cuda::disturb();
}

}  // namespace fa3::hopper::ptx
