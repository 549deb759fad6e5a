// SPDX-License-Identifier: Apache-2.0
// Queues the merge of tiles that were cut along the keys (piece/key_split.h).
#pragma once

#include <cuda_runtime_api.h>

#include "engine/cuda/element.h"
#include "engine/hopper/piece/key_split.h"

namespace fa3::hopper {

struct PieceMerge {
  cuda::PieceOutput pieces;
  const CutTile* cuts;
  int num_cuts;
  int64_t most_pieces;  // that are to be expected of a tile
  cuda::ForwardOutput output;
  cuda::Element element;  // of O, unless that is float32
};

// Of a kernel that runs before it in the stream; starts while that ends.
cudaError_t merge_pieces(const PieceMerge& merge, cudaStream_t stream);

}  // namespace fa3::hopper
