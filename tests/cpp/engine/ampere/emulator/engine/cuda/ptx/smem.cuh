// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the emulator: addresses count from where shared memory begins.
#pragma once

#include "cuda_words.h"

namespace fa3::cuda {

inline uint32_t cvta_to_shared(const void* pointer) {
  return uint32_t(static_cast<const unsigned char*>(pointer) - emulator::shared_memory());
}

template <bool Transposed>
void load_matrices(uint32_t row, uint32_t (&matrices)[4]) {
  struct Mine {
    uint32_t row;
    uint32_t* matrices;
  } mine{row, matrices};
  emulator::meet(Transposed ? "ldmatrix.trans" : "ldmatrix", &mine, [](void* const* lanes) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t all[8][8];
      for (int i = 0; i < 8; ++i) {
        const Mine& m = *static_cast<const Mine*>(lanes[matrix * 8 + i]);
        std::memcpy(all[i], emulator::shared_memory() + m.row, sizeof all[i]);
      }
      for (int lane = 0; lane < emulator::kLanes; ++lane) {
        const int row = lane / 4, column = lane % 4 * 2;
        const uint16_t low = Transposed ? all[column][row] : all[row][column];
        const uint16_t high = Transposed ? all[column + 1][row] : all[row][column + 1];
        static_cast<Mine*>(lanes[lane])->matrices[matrix] = uint32_t(low) | uint32_t(high) << 16;
      }
    }
  });
}
inline void ldmatrix_x4(uint32_t row, uint32_t (&matrices)[4]) {
  load_matrices<false>(row, matrices);
}
inline void ldmatrix_x4_trans(uint32_t row, uint32_t (&matrices)[4]) {
  load_matrices<true>(row, matrices);
}
inline void st_shared_b32x4(uint32_t address, const uint32_t (&value)[4]) {
  std::memcpy(emulator::shared_memory() + address, value, sizeof value);
}
inline void st_shared_b32(uint32_t address, uint32_t value) {
  std::memcpy(emulator::shared_memory() + address, &value, sizeof value);
}
inline void st_shared_b16(uint32_t address, uint16_t value) {
  std::memcpy(emulator::shared_memory() + address, &value, sizeof value);
}
inline void ld_shared_b32x4(uint32_t address, uint32_t (&value)[4]) {
  std::memcpy(value, emulator::shared_memory() + address, sizeof value);
}
inline void ld_shared_f32x2(uint32_t address, float (&value)[2]) {
  std::memcpy(value, emulator::shared_memory() + address, sizeof value);
}

}  // namespace fa3::cuda
