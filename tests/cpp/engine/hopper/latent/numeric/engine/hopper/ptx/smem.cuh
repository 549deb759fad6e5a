// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, with numbers.
#pragma once

#include "engine/cuda/ptx/smem.cuh"

namespace fa3::hopper::ptx {

using cuda::ld_shared_b32x4;
using cuda::st_shared_b32;
using cuda::st_shared_b32x4;

inline uint32_t ld_shared_b32(uint32_t address) {
  uint32_t value;
  cuda::load_numbers(address, value);
  return value;
}
inline void ld_shared_b32x2(uint32_t address, uint32_t (&value)[2]) {
  cuda::load_numbers(address, value);
}
inline void ld_shared_f32x4(uint32_t address, float (&value)[4]) {
  cuda::load_numbers(address, value);
}
inline void st_shared_f32x4(uint32_t address, const float (&value)[4]) {
  cuda::store_numbers(address, value);
}

// PTX ISA, "stmatrix": lane 8 m + i has the address of row i of matrix m.
template <bool Transposed>
void store_matrices(uint32_t row, const uint32_t (&matrices)[4]) {
  struct Mine {
    uint32_t row;
    const uint32_t* matrices;
  } mine{row, matrices};
  machine::store_shared(row);
  machine::together(Transposed ? "stmatrix.trans" : "stmatrix", &mine, [](const auto& lanes) {
    const auto of_lane = [&](int lane) { return reinterpret_cast<Mine*>(lanes[size_t(lane)]); };
    for (int lane = 0; lane < machine::kLanes; ++lane) {
      for (int i = 0; i < 8; ++i) {  // number i % 2 of matrix i / 2
        const uint16_t number = uint16_t(of_lane(lane)->matrices[i / 2] >> i % 2 * 16);
        const int first = lane / 4, second = lane % 4 * 2 + i % 2;
        const int in_row = Transposed ? first : second;
        const uint32_t of_row = of_lane(i / 2 * 8 + (Transposed ? second : first))->row;
        std::memcpy(machine::smem_at(of_row + uint32_t(in_row * 2)), &number, sizeof(number));
      }
    }
  });
}
inline void stmatrix_x4(uint32_t row, const uint32_t (&matrices)[4]) {
  store_matrices<false>(row, matrices);
}
inline void stmatrix_x4_trans(uint32_t row, const uint32_t (&matrices)[4]) {
  store_matrices<true>(row, matrices);
}

}  // namespace fa3::hopper::ptx
