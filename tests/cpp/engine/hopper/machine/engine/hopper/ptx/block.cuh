// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline unsigned block_in_grid() {
  return blockIdx.x;
}

}  // namespace fa3::hopper::ptx
