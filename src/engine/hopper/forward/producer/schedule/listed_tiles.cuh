// SPDX-License-Identifier: Apache-2.0
// The scheduler of tiles whose key blocks stand in the lists of a block mask: in a head's turn the
// longest first, of a sequence where these have lengths of their own. Next: load_tma_listed.cuh.
#pragma once

#include "engine/cuda/lists/block_list.h"
#include "engine/hopper/forward/producer/schedule/varlen_tiles.cuh"

namespace fa3::hopper {

template <Kernel C>
using TilesOfLists = std::conditional_t<C.general(), VarlenTiles<C>, DenseTiles<C>>;

template <Kernel C>
class ListedTiles : public TilesOfLists<C> {
  using Base = TilesOfLists<C>;
  using Base::number, Base::params_;
  static_assert(C.shape.block_m == kMaskBlock && kMaskBlock % C.shape.block_n == 0);

 public:
  static constexpr bool kStartsEarly = true;  // while the last kernel that makes lists still runs
  using Base::Base;

  __device__ __forceinline__ bool next(WorkTileOf<C>& work) const {
    if constexpr (C.general()) {
      describe_sequence(work);
    } else {
      TileIndex index = params_.order.tile(number());
      index.m_block = params_.lists.ranked(index.batch, index.pack, index.m_block);
      const int list = params_.lists.number(index.batch, index.pack, index.m_block);
      describe(work, index.m_block, list,
               {index.batch, index.pack, 0, params_.seqlen_q, params_.seqlen_q},
               {index.batch, 0, params_.seqlen_k});
    }
    return true;
  }

 private:
  // A sequence's lists lie where its entries do. Blocks for which lengths that add up to too many
  // rows leave no entry have the last list.
  __device__ __forceinline__ void describe_sequence(WorkTileOf<C>& work) const {
    const cuda::BlockLists& lists = params_.lists;
    const SequenceTiles& s = params_.sequences[number() / params_.order.num_packs];
    const TileIndex index = s.order.tile(number() - s.first_entry * params_.order.num_packs);
    const auto list_of = [&](int m_block) {
      const int list = s.first_entry + m_block, last = lists.num_lists - 1;
      return lists.number(0, index.pack, list < last ? list : last);
    };
    const int m_block = lists.lengths[list_of(index.m_block)].nth;
    cuda::QueryRows queries = s.queries;
    queries.pack = index.pack;
    work.place.sequence = s.number;
    describe(work, m_block, list_of(m_block), queries, s.keys);
  }

  __device__ __forceinline__ void describe(WorkTileOf<C>& work, int m_block, int list,
                                           const cuda::QueryRows& queries,
                                           const KeyRows& keys) const {
    constexpr int kSteps = kMaskBlock / C.shape.block_n;  // of a block
    const ListLength length = params_.lists.lengths[list];
    const int num_steps = length.count * kSteps, num_full = length.num_full * kSteps;
    work.num_blocks = num_steps;
    work.first_row = m_block * C.shape.block_m;
    work.queries = queries;
    work.keys = keys;
    work.first_key = 0;
    work.place.blocks = params_.lists.blocks_of(list);
    // Blocks that are seen in part come first, and may hide all from a row: its reference is taken
    // from the first keys that all rows see.
    const bool guards = num_full > 0 && !has_foreign_rows(queries, work.first_row);
    const int guarded = guards ? num_full - 1 : 0;
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      const bool has_rows = work.first_row + w * kRowsPerWarpgroup < queries.count;
      RowBlocks<RightEdge>& mine = work.mine[w];
      mine.count = has_rows ? num_steps : 0;
      mine.masked_from = num_full;
      mine.online_from = guarded;
    }
    for (unsigned char& count : work.fired_guards) count = 0;
  }

  // Rows past the used ones hold anything: only online steps look at no row but their own. Clipped
  // ones are zeros.
  __device__ __forceinline__ bool has_foreign_rows(const cuda::QueryRows& queries,
                                                   int first_row) const {
    return C.general() && !params_.q_is_clipped && queries.used < params_.seqlen_q &&
           first_row + C.shape.block_m > queries.used;
  }
};

template <Kernel C>
struct SchedulerOf<C, SchedulerKind::kListed> {
  using Type = ListedTiles<C>;
};

}  // namespace fa3::hopper
