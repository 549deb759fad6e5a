// SPDX-License-Identifier: Apache-2.0
// Named barriers, the election of one lane, register reallocation between warpgroups.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/disturb.cuh"
#include "engine/cuda/ptx/instructions.cuh"

namespace fa3::hopper::ptx {

using cuda::cvta_to_shared;

__device__ __forceinline__ void bar_sync(int id, int threads) {
  cuda::disturb();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
  cuda::disturb();
}

__device__ __forceinline__ void bar_arrive(int id, int threads) {
  cuda::disturb();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// As bar_sync(); in how many of the threads `value` is true.
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

}  // namespace fa3::hopper::ptx
