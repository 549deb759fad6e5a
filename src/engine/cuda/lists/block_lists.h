// SPDX-License-Identifier: Apache-2.0
// Makes the lists of a block mask (cuda/lists/block_list.h) from its map, on the device.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/cuda/lists/block_list.h"
#include "engine/cuda/lists/row_cuts.h"
#include "engine/cuda/tile/sequences.h"

namespace fa3::cuda {

// A list of tiles (cuda/tile/sequences.h). Null: all sequences have one length.
struct TileList {
  const SequenceTiles* entries = nullptr;
  const int* count = nullptr;
};

// Lists to be ranked: those of a map are `of_map` neighbours, and those of a sequence together.
struct UnrankedLists {
  ListLength* lengths;
  int64_t count;
  int of_map;
  TileList tiles;
};

// Sequences of their own lengths share one map's lists: of rows as many as the list of query tiles
// has room for, each the number of its sequence's first entry and its block's further on, and of
// columns likewise. The last of either is for blocks that found no room, and sees nothing.
struct BlockListParams {
  BlockMask mask;
  MaskRuleOf<int> rule;    // which holds besides; without chunks
  int seqlen_q, seqlen_k;  // of the longest sequence
  bool varlen;
  int rows_of_map, columns_of_map;
  int query_blocks, key_blocks;  // of the longest sequence
  uint32_t* own_bits;            // a block of none, and most_cuts() for each row of the maps
  ListedBlock* row_blocks;       // (maps, rows_of_map, row_capacity())
  ListLength* row_lengths;
  // The backward's alone; null: not wanted.
  int* orders;  // (maps, rows_of_map, key_blocks): ListedBlock::order, for deterministic calls
  ListedBlock* column_blocks;  // (maps, columns_of_map, query_blocks)
  ListLength* column_lengths;
  int* first_rows;        // varlen, by sequence
  int* tile_counter;      // cleared; null: none
  TileList row_tiles;     // varlen: of queries, of at most kMaskBlock rows
  TileList column_tiles;  // and of keys, of kMaskBlock rows

  FA3_HD constexpr int row_capacity() const { return key_blocks > 0 ? key_blocks : 1; }
  FA3_HD constexpr int64_t maps() const { return (varlen ? 1 : mask.batches) * mask.heads; }
  FA3_HD constexpr int64_t rows() const { return maps() * rows_of_map; }
  FA3_HD constexpr int64_t columns() const { return maps() * columns_of_map; }
  // Lists that a kernel reads. Key blocks of deterministic calls have their order; others come the
  // longest first.
  FA3_HD constexpr bool ranked() const { return orders == nullptr; }
  FA3_HD constexpr UnrankedLists walked() const {
    if (column_blocks == nullptr) return {row_lengths, rows(), rows_of_map, row_tiles};
    return {column_lengths, columns(), columns_of_map, column_tiles};
  }
  FA3_HD constexpr int most_cuts() const { return RowCuts::most(rule, varlen ? 1 : seqlen_k); }
};

cudaError_t prepare_block_lists(const BlockListParams& params, cudaStream_t stream);

}  // namespace fa3::cuda
