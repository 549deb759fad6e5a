// SPDX-License-Identifier: Apache-2.0
//
// The kernels for CPUs with AMX: those of AVX-512, but bfloat16 is multiplied by tiles.
#define FA3_ISA amx
#define FA3_TILES
#include "engine/cpu/simd/amx/tile_gradients.h"
#include "engine/cpu/simd/amx/tile_rows.h"
#include "engine/cpu/simd/kernel_table.h"

namespace fa3::cpu::amx {
namespace {

void attend_block_on_tiles(const BlockJob& job) {
  configure_tiles();
  attend_block<Bf16Tiles>(job);
  release_tiles();
}

// Four sums of tiles, as the kernels have them.
double multiply_add_tiles(int64_t repeats) {
  const float zeros[kTileRows * kTileSide] = {};
  configure_tiles();
  zero_sums<2>();
  for (int64_t n = 0; n < 4 * repeats; ++n) {
    if (n == 0) multiply_tiles<2>({zeros, kTileSide}, {zeros, 0});
    tile_multiply_add<0, 4, 6>();
    tile_multiply_add<1, 4, 7>();
    tile_multiply_add<2, 5, 6>();
    tile_multiply_add<3, 5, 7>();
  }
  release_tiles();
  return 2.0 * kTileRows * kTileRows * kTileDepth * 4.0 * static_cast<double>(repeats);
}

}  // namespace

constexpr Kernels kKernels = [] {
  Kernels table = table_of<Floats<BFloat16>>("amx");
  table.bf16_products = "AMX tiles";
  table.group_shape[FA3_BFLOAT16] = kTileGroup;
  table.attend_block[FA3_BFLOAT16] = attend_block_on_tiles;
  table.pack_tile[FA3_BFLOAT16] = pack_tile<Bf16Tiles>;
  table.attend_rows[FA3_BFLOAT16] = attend_rows_on_tiles;
  table.bf16_gradients = &kTileGradients;
  table.multiply_add[FA3_BFLOAT16] = multiply_add_tiles;
  return table;
}();

}  // namespace fa3::cpu::amx
