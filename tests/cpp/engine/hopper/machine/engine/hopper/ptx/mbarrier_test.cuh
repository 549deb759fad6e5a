// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline bool mbarrier_test_parity(uint32_t barrier, uint32_t parity) {
  return machine::barrier_passed(barrier, parity);
}

}  // namespace fa3::hopper::ptx
