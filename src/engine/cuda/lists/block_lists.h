// SPDX-License-Identifier: Apache-2.0
// Makes the lists of a block mask (cuda/lists/block_list.h) from its map, on the device.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/cuda/lists/block_list.h"
#include "engine/cuda/lists/row_cuts.h"

namespace fa3::cuda {

// Lists to be ranked, those of a map `of_map` neighbours.
struct UnrankedLists {
  ListLength* lengths;
  int64_t count;
  int of_map;
};

struct BlockListParams {
  BlockMask mask;
  MaskRuleOf<int> rule;  // which holds besides; without chunks
  int seqlen_q, seqlen_k;
  int query_blocks, key_blocks;  // of the sequences
  uint32_t* own_bits;            // a block of none, and most_cuts() for each row of the maps
  ListedBlock* row_blocks;       // (maps, query_blocks, row_capacity())
  ListLength* row_lengths;
  // The backward's alone; null: not wanted.
  int* orders;  // (maps, query_blocks, key_blocks): ListedBlock::order, for deterministic calls
  ListedBlock* column_blocks;  // (maps, key_blocks, query_blocks)
  ListLength* column_lengths;
  int* tile_counter;  // cleared; null: none

  FA3_HD int row_capacity() const { return key_blocks > 0 ? key_blocks : 1; }
  FA3_HD int64_t maps() const { return mask.batches * mask.heads; }
  FA3_HD int64_t rows() const { return maps() * query_blocks; }
  FA3_HD int64_t columns() const { return maps() * key_blocks; }
  // Those that a kernel walks. Key blocks of deterministic calls have their order; others come the
  // longest first.
  FA3_HD bool ranked() const { return orders == nullptr; }
  FA3_HD UnrankedLists walked() const {
    if (column_blocks == nullptr) return {row_lengths, rows(), query_blocks};
    return {column_lengths, columns(), key_blocks};
  }
  FA3_HD int most_cuts() const { return RowCuts::most(rule, seqlen_k); }
};

cudaError_t prepare_block_lists(const BlockListParams& params, cudaStream_t stream);

}  // namespace fa3::cuda
