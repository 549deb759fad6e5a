// SPDX-License-Identifier: Apache-2.0
// What prepare_e4m3.h prepares, ahead of the forward kernel's tiles and beside them, where V lies
// as TMA reads it and sequences have one length. Next: transpose_order.h, transpose_ahead.cuh.
#pragma once

#include <cuda.h>

#include "engine/hopper/fp8/prepare_e4m3.h"
#include "engine/hopper/fp8/transpose_order.h"

namespace fa3::hopper {

// Boxes of V and of V^T.
inline constexpr tile::TileLayout kValueBox{kPreparedKeys, tile::kSquare, 1};
inline constexpr tile::TileLayout kSquareBox{tile::kSquare, tile::kSquare, 1};

struct TransposeAhead {
  CUtensorMap v, transposed;
  E4m3Preparation values;
  int keys;  // of each sequence
  TransposeOrder order;
  int* parts_done;  // (sequences, kv_heads): each part once for each warp that shares it
};

// Clears parts_done and the forward kernel's tile counter first. The forward kernel starts when the
// first heads are there, and waits for the others (HeadsInWork).
cudaError_t transpose_ahead(const TransposeAhead& params, cudaStream_t stream);

}  // namespace fa3::hopper
