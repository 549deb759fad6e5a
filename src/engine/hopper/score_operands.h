// SPDX-License-Identifier: Apache-2.0
// What a forward kernel with a score function is given beside ForwardParams, and the order of its
// tiles.
#pragma once

#include <cuda.h>

#include "engine/cuda/softmax/score_captures.h"
#include "engine/cuda/tile/tile_order.h"

namespace fa3::hopper {

// Tiles of sequences or heads that read the same part of a captured tensor (a bias of heads, rows
// and keys, say, which sequences share) come one behind the other, so that it is still in the L2
// for all but the first: those of `packs` head packs and `batches` sequences. The order of tiles
// counts such a group as one head pack of one sequence, with count() times the query blocks. Pure
// functions of plain numbers.
struct TilesTogether {
  int packs = 1;
  int batches = 1;

  FA3_HD constexpr int count() const { return packs * batches; }

  FA3_HD constexpr cuda::TileIndex tile(const cuda::TileIndex& of_group) const {
    const int member = of_group.m_block % count();
    return {of_group.m_block / count(), of_group.pack * packs + member % packs,
            of_group.batch * batches + member / packs};
  }
};

struct ScoreOperands {
  cuda::ScoreCaptures captures;
  CUtensorMap captured_map;  // of the tensor whose tiles the kernel loads, if it does
  TilesTogether together;    // where sequences have one length, and no lists
  // For products that begin with what the function adds to the score: the softmax scale * log2(e),
  // and what the scale is divided out by.
  float scale_log2;
  float inverse_scale;
};

}  // namespace fa3::hopper
