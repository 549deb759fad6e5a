// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "machine.h"

namespace fa3::hopper::ptx {

inline void stmatrix_x4(uint32_t smem, const uint32_t (&)[4]) {
  machine::stage(smem);
}

}  // namespace fa3::hopper::ptx
