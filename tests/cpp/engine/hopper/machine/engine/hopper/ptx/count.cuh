// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/: one CTA counts alone.
#pragma once

#include <cstdint>

namespace fa3::hopper::ptx {

inline uint64_t add_in_order(uint64_t* at, uint64_t value) {
  const uint64_t before = *at;
  *at += value;
  return before;
}
inline void replace(uint64_t* at, uint64_t expected, uint64_t value) {
  if (*at == expected) *at = value;
}

}  // namespace fa3::hopper::ptx
