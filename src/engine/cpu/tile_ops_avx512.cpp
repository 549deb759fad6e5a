// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/tile_ops_kernel.h"

namespace fa3::cpu {

extern const TileOps kTileOps_avx512;
const TileOps kTileOps_avx512 = {"avx512", TileKernels<64>::multiply_add, TileKernels<64>::exp2};

}  // namespace fa3::cpu
