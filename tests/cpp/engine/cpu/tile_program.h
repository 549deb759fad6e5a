// SPDX-License-Identifier: Apache-2.0
//
// One product of tiles, from the sources of the amx kernels: as instructions, and emulated.
#pragma once

namespace fa3::cpu::test {

// sums (32, 32) += left (32 rows, 16 pairs of bfloat16) right (2 column tiles of 16 pairs, 16).
void multiply_by_tiles(const float* left, const float* right, float* sums);
void multiply_emulated(const float* left, const float* right, float* sums);

}  // namespace fa3::cpu::test
