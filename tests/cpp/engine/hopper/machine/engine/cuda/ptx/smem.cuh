// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the machine of the protocol test.
#pragma once

#include <cstring>

#include "instructions.h"

namespace fa3::cuda {

inline void ldmatrix_x4(uint32_t row, uint32_t (&matrices)[4]) {
  machine::load_shared(row);
  for (uint32_t& pair : matrices) pair = 0;
}
inline void ldmatrix_x4_trans(uint32_t row, uint32_t (&matrices)[4]) {
  ldmatrix_x4(row, matrices);
}
inline void st_shared_f32x4(uint32_t address, const float (&value)[4]) {
  for (float x : value) machine::settled(x);
  machine::store_shared(address);
}
inline void st_shared_b32x4(uint32_t address, const uint32_t (&)[4]) {
  machine::store_shared(address);
}
// A field of a work tile, or a drawn tile: really there. It is no buffer that is read, for the
// model sees its barriers.
inline void st_shared_b32(uint32_t address, uint32_t value) {
  machine::store_shared(address);
  std::memcpy(machine::smem_at(address), &value, sizeof value);
}
inline uint32_t ld_shared_b32(uint32_t address) {
  uint32_t value = 0;
  std::memcpy(&value, machine::smem_at(address), sizeof value);
  return value;
}
inline void ld_shared_b32x2(uint32_t address, uint32_t (&value)[2]) {
  machine::load_shared(address);
  for (uint32_t& word : value) word = 0;
}
inline void ld_shared_b32x4(uint32_t address, uint32_t (&value)[4]) {
  machine::load_shared(address);
  for (uint32_t& word : value) word = 0;
}
inline void ld_shared_f32x4(uint32_t address, float (&value)[4]) {
  machine::load_shared(address);
  for (float& x : value) x = 0;
}
inline void ld_shared_f32x2(uint32_t address, float (&value)[2]) {
  machine::load_shared(address);
  value[0] = value[1] = 0;
}

inline void st_shared_b16(uint32_t address, uint16_t) {
  machine::store_shared(address);
}

}  // namespace fa3::cuda
