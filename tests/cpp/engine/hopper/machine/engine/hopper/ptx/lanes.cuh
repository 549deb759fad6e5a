// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "instructions.h"
#include "lanes.h"

namespace fa3::hopper::ptx {

inline constexpr int kLanes = machine::kLanes;

inline int lane() {
  return machine::own_lane();
}

inline constexpr bool kEveryLaneArrives = false;
inline constexpr int kArrivalsOfWarp = 1;

template <class T>
T& apart(T& shared) {
  return shared;
}

inline unsigned block_in_grid() {
  return blockIdx.x;
}

}  // namespace fa3::hopper::ptx
