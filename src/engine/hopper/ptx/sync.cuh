// SPDX-License-Identifier: Apache-2.0
// Named barriers, the election of one lane, register reallocation between warpgroups, fences, and
// the order of kernels in a stream.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/disturb.cuh"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/sync.cuh"

namespace fa3::hopper::ptx {

using cuda::bar_arrive;
using cuda::bar_sync;
using cuda::cvta_to_shared;

// bar_sync() that returns in how many of the threads `value` is true.
__device__ __forceinline__ unsigned bar_count(int id, int threads, bool value) {
  cuda::disturb();
  unsigned count;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "bar.red.popc.u32 %0, %1, %2, p;\n}\n"
      : "=r"(count)
      : "r"(id), "r"(threads), "r"(unsigned(value))
      : "memory");
  cuda::disturb();
  return count;
}

// True in exactly one lane of the (converged) warp, always the same one.
__device__ __forceinline__ bool elect_sync() {
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(elected));
  return elected != 0;
}

template <int Registers>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

// ---- Fences between stores by threads and their readers in the async proxy: wgmma and the TMA.
// Executed by the thread that stored, before the barrier that tells the reader ----

__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// fence_proxy_async() for global memory: by the thread that stored, and by the one that knows and
// asks TMA for it.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// ---- Programmatic dependent launch (PTX ISA, "griddepcontrol"): the next kernel of a stream
// starts while this one still runs, and waits where it first needs this one's results ----

// The next kernel may start once every CTA of this one has said so or is gone.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Waits until the kernel before has finished and its stores are visible.
__device__ __forceinline__ void griddepcontrol_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace fa3::hopper::ptx
