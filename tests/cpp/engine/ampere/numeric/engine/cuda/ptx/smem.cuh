// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, with numbers.
#pragma once

#include "lanes.cuh"

namespace fa3::cuda {

inline uint32_t cvta_to_shared(const void* pointer) {
  return machine::shared_address(pointer);
}

inline void ldmatrix(uint32_t row, uint32_t (&matrices)[4], bool transposes) {
  const auto rows = machine::brought("ldmatrix", row);
  const int lane = int(threadIdx.x % 32);
  const auto element = [&](int matrix, int r, int c) {
    uint16_t bits;
    std::memcpy(&bits, machine::smem_at(rows[size_t(matrix * 8 + r)]) + c * 2, sizeof(bits));
    return uint32_t{bits};
  };
  for (int m = 0; m < 4; ++m) {
    const int first = lane / 4, second = lane % 4 * 2;
    matrices[m] = transposes ? element(m, second, first) | element(m, second + 1, first) << 16
                             : element(m, first, second) | element(m, first, second + 1) << 16;
  }
  machine::exchange("ldmatrix", 0);  // all have read before any goes on
}
inline void ldmatrix_x4(uint32_t row, uint32_t (&matrices)[4]) {
  ldmatrix(row, matrices, false);
}
inline void ldmatrix_x4_trans(uint32_t row, uint32_t (&matrices)[4]) {
  ldmatrix(row, matrices, true);
}
inline void st_shared_b16(uint32_t address, uint16_t value) {
  std::memcpy(machine::smem_at(address), &value, sizeof(value));
}
inline void st_shared_b32(uint32_t address, uint32_t value) {
  std::memcpy(machine::smem_at(address), &value, sizeof(value));
}
inline uint32_t ld_shared_b32(uint32_t address) {
  uint32_t value;
  std::memcpy(&value, machine::smem_at(address), sizeof(value));
  return value;
}
inline void st_shared_b32x4(uint32_t address, const uint32_t (&value)[4]) {
  std::memcpy(machine::smem_at(address), value, sizeof(value));
}
inline void st_shared_f32x4(uint32_t address, const float (&value)[4]) {
  std::memcpy(machine::smem_at(address), value, sizeof(value));
}
inline void ld_shared_b32x2(uint32_t address, uint32_t (&value)[2]) {
  std::memcpy(value, machine::smem_at(address), sizeof(value));
}
inline void ld_shared_b32x4(uint32_t address, uint32_t (&value)[4]) {
  std::memcpy(value, machine::smem_at(address), sizeof(value));
}
inline void ld_shared_f32x4(uint32_t address, float (&value)[4]) {
  std::memcpy(value, machine::smem_at(address), sizeof(value));
}
inline void ld_shared_f32x2(uint32_t address, float (&value)[2]) {
  std::memcpy(value, machine::smem_at(address), sizeof(value));
}
inline float ld_shared_f32(uint32_t address) {
  float value;
  std::memcpy(&value, machine::smem_at(address), sizeof(value));
  return value;
}

}  // namespace fa3::cuda
