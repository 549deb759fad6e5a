// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

namespace fa3::hopper::ptx {

inline constexpr int kLanes = 1;

inline int lane() {
  return 0;
}

inline constexpr bool kEveryLaneArrives = false;
inline constexpr int kArrivalsOfWarp = 1;

}  // namespace fa3::hopper::ptx
