// SPDX-License-Identifier: Apache-2.0
// How many lanes share a warp's work (the model of the SM has one), and which of them
// arrive at a barrier when all are done: lane 0, for its warp. compute-sanitizer's racecheck does
// not follow those that it speaks for, so in a build for it (FA3_EVERY_LANE_ARRIVES) each arrives
// itself.
#pragma once

namespace fa3::hopper::ptx {

inline constexpr int kLanes = 32;

__device__ __forceinline__ int lane() {
  return int(threadIdx.x) % kLanes;
}

#ifdef FA3_EVERY_LANE_ARRIVES
inline constexpr bool kEveryLaneArrives = true;
#else
inline constexpr bool kEveryLaneArrives = false;
#endif
inline constexpr int kArrivalsOfWarp = kEveryLaneArrives ? kLanes : 1;

}  // namespace fa3::hopper::ptx
