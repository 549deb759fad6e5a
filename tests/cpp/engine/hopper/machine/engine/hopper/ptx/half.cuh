// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include <cstdint>

namespace fa3::hopper::ptx {

inline uint32_t fma_f16x2(uint32_t, uint32_t, uint32_t) {
  return 0;
}

}  // namespace fa3::hopper::ptx
