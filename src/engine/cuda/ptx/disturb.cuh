// SPDX-License-Identifier: Apache-2.0
// Delays for the stress build (FA3_DISTURB; tests/cuda/CMakeLists.txt): before and after everything
// by which warps wait for each other, some sleep for some time, so that producers and consumers
// meet in orders that an undisturbed GPU never shows. Empty, and gone, in every other build.
#pragma once

#include <cstdint>

namespace fa3::cuda {

#ifdef FA3_DISTURB
__device__ __forceinline__ uint32_t mix(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// Each warp has a temper that lasts some 2^22 clocks: undisturbed, often a little, rarely for long,
// or always for long. The lanes of a warp sleep alike: no branch, so they stay together.
__device__ __forceinline__ void disturb() {
  uint32_t clock;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(clock));
  const uint32_t warp = blockIdx.x * 32 + threadIdx.x / 32;
  const uint32_t temper = mix(warp ^ clock >> 22 << 16) % 4;
  const uint32_t dice = mix(clock ^ warp << 20);
  const uint32_t often = dice % 4 == 0 ? 200 : 0;
  const uint32_t rarely = dice % 64 == 0 ? 8000 : 0;
  const uint32_t always = 1000;
  const uint32_t longest = temper == 0 ? 0 : temper == 1 ? often : temper == 2 ? rarely : always;
  __nanosleep(longest == 0 ? 0 : (dice >> 8) % longest);
}
#else
__device__ __forceinline__ void disturb() {}
#endif

}  // namespace fa3::cuda
