// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

namespace fa3::hopper::ptx {

template <class T>
T& apart(T& shared) {
  return shared;
}

}  // namespace fa3::hopper::ptx
