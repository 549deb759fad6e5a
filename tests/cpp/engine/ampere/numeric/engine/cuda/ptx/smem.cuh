// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, with numbers: the model is told of each lane's access first.
#pragma once

#include <cstring>

#include "cuda_words.h"
#include "instructions.h"

namespace fa3::cuda {

// PTX ISA, "ldmatrix": lane 8 m + i has the address of row i of matrix m.
template <bool Transposed>
void load_matrices(uint32_t row, uint32_t (&matrices)[4]) {
  struct Mine {
    uint32_t row;
    uint32_t* matrices;
  } mine{row, matrices};
  machine::load_shared(row);
  machine::together(Transposed ? "ldmatrix.trans" : "ldmatrix", &mine, [](const auto& lanes) {
    const auto of_lane = [&](int lane) { return reinterpret_cast<Mine*>(lanes[size_t(lane)]); };
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t all[8][8];
      for (int i = 0; i < 8; ++i) {
        std::memcpy(all[i], machine::smem_at(of_lane(matrix * 8 + i)->row), sizeof(all[i]));
      }
      for (int lane = 0; lane < machine::kLanes; ++lane) {
        const int first = lane / 4, second = lane % 4 * 2;
        const uint16_t low = Transposed ? all[second][first] : all[first][second];
        const uint16_t high = Transposed ? all[second + 1][first] : all[first][second + 1];
        of_lane(lane)->matrices[matrix] = uint32_t(low) | uint32_t(high) << 16;
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

template <class T>
void store_numbers(uint32_t address, const T& value) {
  machine::store_shared(address);
  std::memcpy(machine::smem_at(address), &value, sizeof(value));
}
template <class T>
void load_numbers(uint32_t address, T& value) {
  machine::load_shared(address);
  std::memcpy(&value, machine::smem_at(address), sizeof(value));
}
inline void st_shared_b16(uint32_t address, uint16_t value) {
  store_numbers(address, value);
}
inline void st_shared_b32(uint32_t address, uint32_t value) {
  store_numbers(address, value);
}
inline void st_shared_b32x4(uint32_t address, const uint32_t (&value)[4]) {
  store_numbers(address, value);
}
inline void ld_shared_b32x4(uint32_t address, uint32_t (&value)[4]) {
  load_numbers(address, value);
}
inline void ld_shared_f32x2(uint32_t address, float (&value)[2]) {
  load_numbers(address, value);
}

inline unsigned char* dynamic_smem() {
  return machine::shared_memory();
}

}  // namespace fa3::cuda
