// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test, where it is always one's turn.
#pragma once

namespace fa3::hopper::ptx {

inline int ld_acquire(const int* counter) {
  return *counter;
}
inline void add_release(int* counter, int value) {
  *counter += value;
}

}  // namespace fa3::hopper::ptx
