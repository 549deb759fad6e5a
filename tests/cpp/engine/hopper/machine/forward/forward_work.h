// SPDX-License-Identifier: Apache-2.0
//
// The tiles of a forward's CTAs, or splits of tiles, and the key blocks that each of them steps
// through: by the mask rule and by the order of the launch. Next: forward_products.h,
// forward_departures.h, forward_counts.h.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/hopper/scheduler/sequence_window.cuh"
#include "forward/launched_forward.h"

namespace fa3::hopper {

// A tile, or a split of one, and its sequence.
struct ForwardWork {
  int m_block;
  QueryRows queries;
  KeyRows keys;
  KvBlocks blocks{0, kAllBlocks};  // of a split
  int partial = TileSplit::kNotSplit;
  CombineTile combine{};  // of kernels that combine splits themselves
  int first_list = 0;     // of a sequence's, under a block mask
  bool opens = false;     // a tile whose later splits are added to this one

  bool is_split() const { return partial != TileSplit::kNotSplit; }
};

class ForwardWorks {
 public:
  using Work = ForwardWork;

  explicit ForwardWorks(const LaunchedForward& launch) : launch_(launch) {}

  // What CTA 0 computes, which has drawn these tickets, or one among all.
  std::vector<Work> works_of(int cta, const std::vector<int>& drawn) const {
    std::vector<Work> all;
    if (!shape_.finds_own_tiles()) {
      for (int tile : tiles_of_first_cta(drawn)) all.push_back(work_of(tile));
      return all;
    }
    const PairedKvSchedule schedule{launch_.params.schedule, launch_.params.pair_blocks};
    SequenceSmem memory;
    // Who is waited for comes first.
    const int range = launch_.opener_combines ? launch_.blocks - 1 - cta : cta;
    SplitIterator splits(schedule, SequenceWindow(schedule, memory.entries), range, launch_.blocks);
    while (!splits.done()) {
      SequenceTiles s;
      TileSplit split;
      if (!splits.next(s, split)) continue;
      s.queries.pack = split.pack;
      all.push_back({split.m_block, s.queries, s.keys, split.blocks, split.partial});
      if (shape_.scheduler == Scheduler::kStreamK) {
        all.back().combine = splits.combine_tile_of_range(split);
      }
      all.back().opens = launch_.opener_combines && splits.later_splits(split) > 0;
    }
    return all;
  }

  // The first key of a tile's or of a list's block, in its sequence.
  int key_of_block(const Work& work, int block) const {
    if (config_.block_mask()) {
      return cuda::listed_key(launch_.params.lists.blocks_of(list_of(work)),
                              block * config_.shape.block_n);
    }
    return first_key_of(work) + block * config_.shape.block_n;
  }

  int num_blocks_of(const Work& work, int warpgroup) const {
    const int first_row = work.m_block * config_.shape.block_m + warpgroup * kRowsPerWarpgroup;
    if (first_row >= work.queries.count) return 0;
    if (config_.block_mask()) {
      return launch_.params.lists.lengths[list_of(work)].count *
             (kMaskBlock / config_.shape.block_n);
    }
    if (first_row >= work.queries.used) return 1;
    const int end = std::min(first_row + kRowsPerWarpgroup, work.queries.used);
    const auto range = block_range(shape_.mask, first_row, end, work.queries.used, work.keys.count);
    return std::min(visited_blocks(range.from(first_key_of(work)), config_.shape.block_n).end,
                    work.blocks.count);
  }
  // The most blocks that any warpgroup has.
  int most_blocks_of(const Work& work) const {
    int most = 0;
    for (int w = 0; w < config_.consumers(); ++w) most = std::max(most, num_blocks_of(work, w));
    return most;
  }

 private:
  // The tiles that it drew, or that were dealt to it.
  std::vector<int> tiles_of_first_cta(const std::vector<int>& drawn) const {
    const ForwardParams& params = launch_.params;
    const int all =
        params.sequences ? *params.num_entries * params.order.num_packs : params.order.num_tiles();
    std::vector<int> tiles = {0};
    if (params.tile_counter != nullptr) {
      for (int ticket : drawn) tiles.push_back(ticket + launch_.blocks);
    } else {
      for (int tile = launch_.blocks; tile < all; tile += launch_.blocks) tiles.push_back(tile);
    }
    std::erase_if(tiles, [all](int tile) { return tile >= all; });
    return tiles;
  }

  Work work_of(int tile) const {
    const ForwardParams& params = launch_.params;
    if (params.sequences) {
      SequenceTiles sequence = params.sequences[tile / params.order.num_packs];
      const TileIndex index =
          sequence.order.tile(tile - sequence.first_entry * params.order.num_packs);
      sequence.queries.pack = index.pack;
      Work work{index.m_block, sequence.queries, sequence.keys};
      work.first_list = sequence.first_entry;
      if (config_.block_mask()) work.m_block = params.lists.lengths[list_of(work)].nth;
      return work;
    }
    TileIndex index = params.order.tile(tile);
    if (config_.block_mask()) {
      index.m_block = params.lists.ranked(index.batch, index.pack, index.m_block);
    }
    return {index.m_block,
            {index.batch, index.pack, 0, shape_.seqlen_q, shape_.seqlen_q},
            {index.batch, 0, shape_.seqlen_k}};
  }

  // Sequences of their own lengths have lists where their entries are.
  int list_of(const Work& work) const {
    const cuda::BlockLists& lists = launch_.params.lists;
    return shape_.varlen() ? lists.number(0, work.queries.pack, work.first_list + work.m_block)
                           : lists.number(work.queries.batch, work.queries.pack, work.m_block);
  }

  // The first key that a tile sees, in its sequence.
  int first_key_of(const Work& work) const {
    const int first_row = work.m_block * config_.shape.block_m;
    if (shape_.finds_own_tiles()) return work.blocks.first * config_.shape.block_n;
    int first_key = shape_.mask.keys_of(first_row, work.queries.used, work.keys.count).begin;
    if (config_.e4m3()) first_key = std::min(first_key, work.keys.count);
    const bool whole_blocks = shape_.page_size > 0 || config_.e4m3() || config_.dropout();
    return whole_blocks ? first_key / config_.shape.block_n * config_.shape.block_n : first_key;
  }

  const LaunchedForward& launch_;
  const Kernel& config_ = launch_.config;
  const CallShape& shape_ = launch_.shape;
};

}  // namespace fa3::hopper
