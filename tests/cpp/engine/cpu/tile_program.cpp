// SPDX-License-Identifier: Apache-2.0
//
// Compiled twice, with and without FA3_EMULATE_TILES.
#include "tile_program.h"

#if defined(FA3_EMULATE_TILES)
#define FA3_ISA tile_program_emulated
#define FA3_TILE_PROGRAM multiply_emulated
#else
#define FA3_ISA tile_program
#define FA3_TILE_PROGRAM multiply_by_tiles
#endif
#include "engine/cpu/simd/amx/tile.h"

namespace fa3::cpu::test {

void FA3_TILE_PROGRAM(const float* left, const float* right, float* sums) {
  using namespace FA3_ISA;
  configure_tiles();
  load_sums<2>(sums, 2 * kTileSide);
  multiply_tiles<2>({left, kTileSide}, {right, kTileSide * kTileSide});
  store_sums<2>(sums, 2 * kTileSide);
  release_tiles();
}

}  // namespace fa3::cpu::test
