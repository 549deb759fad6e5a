// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, with numbers.
#pragma once

#include "engine/cuda/ptx/smem.cuh"

namespace fa3::hopper::ptx {

using cuda::ld_shared_b32x4;
using cuda::st_shared_b32x4;

inline void ld_shared_f32x4(uint32_t address, float (&value)[4]) {
  cuda::load_numbers(address, value);
}

// PTX ISA, "stmatrix": lane 8 m + i has the address of row i of matrix m.
inline void stmatrix_x4_trans(uint32_t row, const uint32_t (&matrices)[4]) {
  struct Mine {
    uint32_t row;
    const uint32_t* matrices;
  } mine{row, matrices};
  machine::store_shared(row);
  machine::together("stmatrix.trans", &mine, [](const auto& lanes) {
    const auto of_lane = [&](int lane) { return reinterpret_cast<Mine*>(lanes[size_t(lane)]); };
    for (int lane = 0; lane < machine::kLanes; ++lane) {
      for (int i = 0; i < 8; ++i) {  // number i % 2 of matrix i / 2
        const uint16_t number = uint16_t(of_lane(lane)->matrices[i / 2] >> i % 2 * 16);
        const uint32_t to = of_lane(i / 2 * 8 + lane % 4 * 2 + i % 2)->row + uint32_t(lane / 4 * 2);
        std::memcpy(machine::smem_at(to), &number, sizeof(number));
      }
    }
  });
}

}  // namespace fa3::hopper::ptx
