// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, with numbers: one thread's, which asks nobody.
#pragma once

#include <array>
#include <cstdint>
#include <map>

namespace fa3::hopper::ptx {

inline std::map<uint32_t, std::array<uint32_t, 4>> shared_words;

inline void st_shared_b32x4(uint32_t address, const uint32_t (&value)[4]) {
  shared_words[address] = std::to_array(value);
}
inline void ld_shared_b32x4(uint32_t address, uint32_t (&value)[4]) {
  const std::array<uint32_t, 4>& words = shared_words.at(address);
  std::copy(words.begin(), words.end(), value);
}

}  // namespace fa3::hopper::ptx
