// SPDX-License-Identifier: Apache-2.0
//
// How many lanes of a warp are modelled: one, which stands for its warp, or all. One is enough, and
// faster, where warps wait for warps; kernels whose lanes share out copies and rows, and wait for
// each other, take all. A program is built for one of them.
#pragma once

#ifndef FA3_MODEL_LANES
#define FA3_MODEL_LANES 1
#endif
#ifndef FA3_MODEL_WARPS  // of a CTA, at most, where all lanes are modelled
#define FA3_MODEL_WARPS 8
#endif

namespace fa3::machine {

inline constexpr int kLanes = FA3_MODEL_LANES;
inline constexpr bool kAllLanes = kLanes > 1;
inline constexpr int kThreadsPerWarp = 32;
inline constexpr int kThreadsOfLane = kThreadsPerWarp / kLanes;  // that a modelled one stands for

}  // namespace fa3::machine
