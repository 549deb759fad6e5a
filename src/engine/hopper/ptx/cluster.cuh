// SPDX-License-Identifier: Apache-2.0
// CTAs of a cluster, and each other's shared memory (PTX ISA, "barrier.cluster", "mapa",
// "st.async", "cp.async.bulk"). A launch without clusters has one CTA in each.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/disturb.cuh"

namespace fa3::hopper::ptx {

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// What a thread has stored before it arrives is seen by those of the cluster that have waited. Each
// thread waits once for each time that it arrived.
__device__ __forceinline__ void cluster_arrive() {
  cuda::disturb();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// cluster_arrive() for threads whose writes nobody reads: a release waits until the GPU sees all
// that the thread has written, sums in global memory too.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  cuda::disturb();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  cuda::disturb();
}

// The address of the same object in the shared memory of CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t in_block_of_cluster(uint32_t address, unsigned rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Stores to the shared memory of a CTA of the cluster, which waits for the bytes at its own
// barrier.
__device__ __forceinline__ void st_async_f32x4(uint32_t address, const float4& v,
                                               uint32_t barrier) {
  cuda::disturb();
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void st_async_f32x2(uint32_t address, float2 v, uint32_t barrier) {
  cuda::disturb();
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(address),
      "f"(v.x), "f"(v.y), "r"(barrier)
      : "memory");
}
// Copies from this CTA's shared memory to that of a CTA of the cluster, which waits for the bytes
// at its own barrier.
__device__ __forceinline__ void cp_async_bulk_to_cluster(uint32_t to, uint32_t from, uint32_t bytes,
                                                         uint32_t barrier) {
  cuda::disturb();
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
      " [%0], [%1], %2, [%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Tells a barrier of a CTA of the cluster what this thread has read: without .release.cluster,
// which waits until the GPU sees all that the thread has written.
__device__ __forceinline__ void mbarrier_arrive_in_cluster(uint32_t barrier) {
  cuda::disturb();
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of the given parity has completed, with what other CTAs have sent.
__device__ __forceinline__ void mbarrier_wait_parity_of_cluster(uint32_t barrier, uint32_t parity) {
  cuda::disturb();
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
  cuda::disturb();
}

}  // namespace fa3::hopper::ptx
