// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/tile_ops_kernel.h"

namespace fa3::cpu {

extern const TileOps kTileOps_avx2;
const TileOps kTileOps_avx2 = {"avx2", TileKernels<32>::multiply_add, TileKernels<32>::exp2};

}  // namespace fa3::cpu
