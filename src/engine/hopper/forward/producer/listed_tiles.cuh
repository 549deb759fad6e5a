// SPDX-License-Identifier: Apache-2.0
// The scheduler of tiles whose key blocks stand in the lists of a block mask: in a head's turn the
// longest first. Next: load_tma_listed.cuh.
#pragma once

#include "engine/hopper/forward/producer/dense_tiles.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class ListedTiles : public DenseTiles<C> {
  using Dense = DenseTiles<C>;
  using Dense::number, Dense::params_;
  static_assert(C.block_m == kMaskBlock && C.block_n == kMaskBlock);

 public:
  static constexpr bool kStartsEarly = true;  // while the last kernel that makes lists still runs
  using Dense::Dense;

  __device__ __forceinline__ bool next(WorkTileOf<C>& work) const {
    TileIndex index = params_.order.tile(number());
    index.m_block = params_.lists.ranked(index.batch, index.pack, index.m_block);
    const int list = params_.lists.number(index.batch, index.pack, index.m_block);
    const ListLength length = params_.lists.lengths[list];
    work.num_blocks = length.count;
    work.first_row = index.m_block * C.block_m;
    work.queries = {index.batch, index.pack, 0, params_.seqlen_q, params_.seqlen_q};
    work.keys = {index.batch, 0, params_.seqlen_k};
    work.first_key = 0;
    work.place.blocks = params_.lists.blocks_of(list);
    // Blocks that are seen in part come first, and may hide all from a row: its reference is taken
    // from the first block that all rows see.
    const int guarded = length.num_full > 0 ? length.num_full - 1 : 0;
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      const bool has_rows = work.first_row + w * kRowsPerWarpgroup < params_.seqlen_q;
      RowBlocks<RightEdge>& mine = work.mine[w];
      mine.count = has_rows ? length.count : 0;
      mine.masked_from = length.num_full;
      mine.online_from = guarded;
    }
    for (unsigned char& count : work.fired_guards) count = 0;
    return true;
  }
};

template <ForwardConfig C>
struct SchedulerOf<C, SchedulerKind::kListed> {
  using Type = ListedTiles<C>;
};

}  // namespace fa3::hopper
