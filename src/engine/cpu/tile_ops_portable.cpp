// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/tile_ops_kernel.h"

namespace fa3::cpu {

extern const TileOps kTileOps_portable;
const TileOps kTileOps_portable = {"portable", TileKernels<16>::multiply_add,
                                   TileKernels<16>::exp2};

}  // namespace fa3::cpu
