// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, with numbers.
#pragma once

#include <cstdint>
#include <cstring>

namespace fa3::hopper::ptx {

inline void load_constant(const void* pointer, uint32_t (&value)[4]) {
  std::memcpy(value, pointer, sizeof(value));
}
inline uint32_t load_constant(const void* pointer) {
  uint32_t value;
  std::memcpy(&value, pointer, sizeof(value));
  return value;
}

}  // namespace fa3::hopper::ptx
