// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

namespace fa3::hopper::ptx {

inline constexpr int kLanes = 1;

inline int lane() {
  return 0;
}

}  // namespace fa3::hopper::ptx
