// SPDX-License-Identifier: Apache-2.0
// Makes the lists of a block mask (cuda/lists/block_list.h) from its map, on the device.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/cuda/lists/block_list.h"

namespace fa3::cuda {

// Bits that the lists have beside the caller's: a block of none, and, where the last block of keys
// is not whole, that block's for each row of the maps.
FA3_HD constexpr int64_t own_bit_blocks(int64_t rows, bool has_tail) {
  return 1 + (has_tail ? rows : 0);
}

struct BlockListParams {
  BlockMask mask;
  int seqlen_k;
  int query_blocks, key_blocks;  // of the sequences
  uint32_t* own_bits;
  ListedBlock* row_blocks;  // (maps, query_blocks, row_capacity())
  ListLength* row_lengths;
  // The backward's alone; null: not wanted.
  int* orders;  // (maps, query_blocks, key_blocks): ListedBlock::order, for deterministic calls
  ListedBlock* column_blocks;  // (maps, key_blocks, query_blocks)
  ListLength* column_lengths;
  int* tile_counter;  // cleared; null: none

  FA3_HD int row_capacity() const { return key_blocks > 0 ? key_blocks : 1; }
  FA3_HD int64_t maps() const { return mask.batches * mask.heads; }
  FA3_HD int64_t rows() const { return maps() * query_blocks; }
  FA3_HD bool has_tail() const { return seqlen_k % kMaskBlock != 0; }
};

cudaError_t prepare_block_lists(const BlockListParams& params, cudaStream_t stream);

}  // namespace fa3::cuda
