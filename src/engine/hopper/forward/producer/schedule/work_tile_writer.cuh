// SPDX-License-Identifier: Apache-2.0
// How a scheduler describes a whole tile, or the blocks of a split, to the consumers. Next:
// dense_tiles.cuh.
#pragma once

#include "engine/hopper/forward/policies/scores.cuh"
#include "engine/hopper/forward/producer/schedule/work_tile_blocks.cuh"

namespace fa3::hopper {

// Writes work tiles in shared memory, where they are read: the producer has no registers to spare
// for them.
template <Kernel C>
class WorkTileWriter : private WorkTileBlocks<C> {
  using WorkTileBlocks<C>::blocks_of, WorkTileBlocks<C>::mask, WorkTileBlocks<C>::params_,
      WorkTileBlocks<C>::paged;

 public:
  using WorkTileBlocks<C>::WorkTileBlocks;

  // A whole tile. Both ends of a row's keys grow with the row: the first row's begin and the last
  // one's end are the tile's.
  __device__ __forceinline__ void write_tile(WorkTileOf<C>& work, int m_block,
                                             const cuda::QueryRows& queries,
                                             const KeyRows& keys) const {
    const int first_row = m_block * C.shape.block_m;
    int first_key =
        mask().keys_of(params_.output.pack.query(first_row), queries.used, keys.count).begin;
    // Boxes do not cross pages then, nor blocks the ranges of keys that share a scale or a draw.
    if (C.e4m3() && first_key > keys.count) first_key = keys.count;
    if (paged() || C.e4m3() || C.dropout()) first_key -= first_key % C.shape.block_n;
    first_key -= first_key % ScoresOf<C>::kKeysTogether;
    int num_blocks = 0;
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      const typename WorkTileOf<C>::Blocks blocks =
          blocks_of(first_row + w * kRowsPerWarpgroup, queries, keys.count, first_key, kAllBlocks);
      write(work.mine[w], blocks);
      if (blocks.count > num_blocks) num_blocks = blocks.count;
    }
    work.num_blocks = num_blocks;
    work.first_row = first_row;
    work.queries = queries;
    work.keys = keys;
    work.first_key = first_key;
    for (unsigned char& count : work.fired_guards) count = 0;
  }

  // What the consumers need of a split beyond write_split().
  __device__ __forceinline__ void write_blocks(WorkTileOf<C>& work) const {
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      write(work.mine[w], blocks_of(work.first_row + w * kRowsPerWarpgroup, work.queries,
                                    work.keys.count, work.first_key, work.num_blocks));
    }
    for (unsigned char& count : work.fired_guards) count = 0;
  }

 private:
  // A window's fields one by one: stores of four at once would take registers that the producer
  // lacks.
  template <class Edge>
  static __device__ __forceinline__ void write(RowBlocks<Edge>& to, const RowBlocks<Edge>& blocks) {
    to.count = blocks.count;
    to.masked_from = blocks.masked_from;
    to.online_from = blocks.online_from;
    to.edge = blocks.edge;
  }
  static __device__ __forceinline__ void write(RowBlocks<RightEdge>& to,
                                               const RowBlocks<RightEdge>& blocks) {
    to = blocks;
  }
};

}  // namespace fa3::hopper
