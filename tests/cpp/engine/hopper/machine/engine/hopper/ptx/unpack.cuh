// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/fragment.h"

namespace fa3::hopper::ptx {

template <Element E>
void unpack_pair(uint32_t, float& low, float& high) {
  low = high = 0;  // nobody looks at weights
}

// Whether a launch has dequantized e4m3, and e5m2: the test resets it.
inline bool has_dequantized[2] = {};

inline void dequantize(uint32_t, bool is_e5m2, uint32_t& low, uint32_t& high) {
  has_dequantized[is_e5m2] = true;
  low = high = 0;
}

// Whether all that a launch has dequantized was of this type.
inline bool has_dequantized_only(bool e5m2) {
  return has_dequantized[e5m2] && !has_dequantized[!e5m2];
}

inline uint32_t fma_f16x2(uint32_t, uint32_t, uint32_t) {
  return 0;
}

}  // namespace fa3::hopper::ptx
