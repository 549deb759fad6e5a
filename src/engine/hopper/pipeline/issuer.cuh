// SPDX-License-Identifier: Apache-2.0
// Who runs the producer's code: one thread, or a whole warp whose lane 0 speaks for all. A warp
// looks up many pages at once. Next: forward/producer/producer.cuh.
#pragma once

#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

struct ThreadIssuer {
  static constexpr int kArrivals = 1;  // at a barrier that it announces something by
  static __device__ __forceinline__ bool takes_part() { return ptx::elect_sync(); }
  static __device__ __forceinline__ bool leads() { return true; }
  static __device__ __forceinline__ void sync() {}
  static __device__ __forceinline__ int draw(int* counter) { return atomicAdd(counter, 1); }
  template <class Smem>
  static __device__ __forceinline__ Smem& own(Smem& smem) {
    return smem;
  }
};

struct WarpIssuer {
  static constexpr int kArrivals = ptx::kArrivalsOfWarp;
  static __device__ __forceinline__ bool takes_part() { return true; }
  static __device__ __forceinline__ bool leads() { return ptx::lane() == 0; }
  static __device__ __forceinline__ void sync() { __syncwarp(); }
  static __device__ __forceinline__ int draw(int* counter) {
    const int drawn = leads() ? atomicAdd(counter, 1) : 0;
    return __shfl_sync(0xffffffff, drawn, 0);
  }
  // An address of its own, for which the consumers keep no register.
  template <class Smem>
  static __device__ __forceinline__ Smem& own(Smem& smem) {
    return ptx::apart(smem);
  }
};

}  // namespace fa3::hopper
