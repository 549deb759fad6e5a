// SPDX-License-Identifier: Apache-2.0
// Block masks (core/mask/block_mask.h) as kernels walk them: for each row of the map a list of the
// key blocks that are seen, and for each column one of the query blocks that see it. A kernel
// before (cuda/lists/block_lists.cu) makes them of the map, so that an entry's block exists and its
// bits may be read, whatever the caller's arrays hold. Next: bit_mask.cuh.
#pragma once

#include <cstdint>

#include "core/mask/block_mask.h"
#include "engine/cuda/feature_params.h"

namespace fa3::cuda {

// A block of a list.
struct alignas(16) ListedBlock {
  const uint32_t* bits;  // of its pairs; null: all are seen
  int block;             // of keys in a row's list, of queries in a column's
  int order;             // how many blocks of the map's row come before this one
};

// The key of a sequence that has place `at` among those of a list's blocks, one behind the other.
FA3_HD constexpr int listed_key(const ListedBlock* blocks, int at) {
  return blocks[at / kMaskBlock].block * kMaskBlock + at % kMaskBlock;
}

// A row's list has its full blocks first. It is never empty: a row that sees nothing has a block
// whose bits are all 0. A column's is in order.
struct ListLength {
  int count;
  int num_full;
  int nth;  // if this is the n-th of its map: which list is the n-th by length, the longest last
};

FA3_HD inline int BlockLists::ranked(int batch, int head, int n) const {
  return lengths[number(batch, head, n)].nth;
}
FA3_HD inline const ListedBlock* BlockLists::blocks_of(int number) const {
  return blocks + int64_t{number} * capacity;
}

}  // namespace fa3::cuda
