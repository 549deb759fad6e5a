// SPDX-License-Identifier: Apache-2.0
// How many lanes share a warp's work: the model of the multiprocessor has one.
#pragma once

namespace fa3::hopper::ptx {

inline constexpr int kLanes = 32;

__device__ __forceinline__ int lane() {
  return int(threadIdx.x) % kLanes;
}

}  // namespace fa3::hopper::ptx
