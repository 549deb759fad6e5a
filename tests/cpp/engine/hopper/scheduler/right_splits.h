// SPDX-License-Identifier: Apache-2.0
// The splits of all CTAs, by iterator, against brute force.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/hopper/scheduler/split_iterator.h"

namespace fa3::hopper {

// What a warp's window tells, one sequence after the other.
template <class Schedule>
struct ListedSequences {
  const Schedule& schedule;

  int count_blocks() const {
    int units = 0;
    for (int b = 0; b < schedule.sequences.num_sequences(); ++b)
      units += schedule.length_of(sequence(b));
    return units;
  }
  BlockPlace place_of(int unit) const {
    BlockPlace place{0, unit};
    for (; place.offset >= schedule.length_of(sequence(place.sequence)); ++place.sequence) {
      place.offset -= schedule.length_of(sequence(place.sequence));
    }
    return place;
  }
  SequenceTiles sequence(int b) const { return schedule.sequences.sequence(b); }
};

// Every visible block of every tile lies in one split, and a split tile knows the splits it has.
template <class Schedule>
void expect_right_splits(const Schedule& schedule, int num_blocks) {
  const VarlenMetadata& all = schedule.sequences;
  using Tile = std::tuple<int, int, int, int>;  // first query, batch, block of queries, pack
  std::map<Tile, std::map<int, std::pair<KvBlocks, int>>> found;  // by first key block
  std::vector<CombineTile> combines(size_t(schedule.num_tiles() + num_blocks), CombineTile{});
  std::set<int> indices;
  for (int block = 0; block < num_blocks; ++block) {
    SplitIterator splits(schedule, ListedSequences<Schedule>{schedule}, block, num_blocks);
    while (!splits.done()) {
      SequenceTiles s;
      TileSplit split{};
      const bool exists = splits.next(s, split);
      if (splits.combine_index() >= 0) {
        CombineTile combine = splits.combine_tile(split);
        combine.queries = s.queries;
        combine.queries.pack = split.pack;
        combines[size_t(splits.combine_index())] = combine;
        ASSERT_TRUE(indices.insert(splits.combine_index()).second) << "a combine index comes twice";
      }
      if (!exists) continue;
      ASSERT_GT(split.blocks.count, 0);
      if (schedule.is_stream_k()) {
        const bool opens_split_tile = split.partial >= num_blocks;
        const int later = splits.later_splits(split);
        ASSERT_EQ(later, opens_split_tile ? splits.combine_tile(split).num_splits - 1 : 0);
        ASSERT_TRUE(later == 0 || splits.done()) << "a CTA goes on behind a tile that it opens";
      }
      const Tile tile{s.queries.begin, s.queries.batch, split.m_block, split.pack};
      const bool first =
          found[tile].emplace(split.blocks.first, std::pair(split.blocks, split.partial)).second;
      ASSERT_TRUE(first) << "a block in two splits";
    }
  }
  if (schedule.num_splits == 1) {
    ASSERT_TRUE(indices.empty()) << "nothing is combined";
  }
  std::map<Tile, CombineTile> combine_of;
  for (const CombineTile& combine : combines) {
    if (combine.num_splits == 0) continue;
    const Tile tile{combine.queries.begin, combine.queries.batch, combine.first_row / all.block_m,
                    combine.queries.pack};
    ASSERT_TRUE(combine_of.emplace(tile, combine).second) << "a tile is combined twice";
  }
  size_t tiles = 0;
  std::set<int> partials;
  for (int b = 0; b < all.num_sequences(); ++b) {
    const SequenceTiles s = all.sequence(b);
    for (int m_block = 0; m_block < s.order.num_m_blocks; ++m_block) {
      for (int pack = 0; pack < all.num_packs; ++pack, ++tiles) {
        const Tile tile{s.queries.begin, s.queries.batch, m_block, pack};
        const auto& splits = found[tile];
        const KvBlocks visible = schedule.blocks_of(s, m_block);
        int next = visible.first;
        std::vector<int> in_order;
        for (const auto& [at, split] : splits) {
          ASSERT_EQ(at, next);
          next += split.first.count;
          in_order.push_back(split.second);
        }
        ASSERT_EQ(next, visible.first + visible.count);
        const auto combine = combine_of.find(tile);
        ASSERT_EQ(combine != combine_of.end(), splits.size() > 1);
        if (splits.size() == 1) {
          ASSERT_EQ(in_order[0], TileSplit::kNotSplit);
          continue;
        }
        ASSERT_EQ(combine->second.num_splits, int(splits.size()));
        for (int i = 0; i < combine->second.num_splits; ++i) {
          ASSERT_EQ(combine->second.partial(i), in_order[size_t(i)]);
          ASSERT_TRUE(partials.insert(in_order[size_t(i)]).second)
              << "two splits in one partial output";
        }
      }
    }
  }
  ASSERT_EQ(found.size(), tiles);
  if (all.lengths_q.in_one_tensor && schedule.num_splits > 1) {
    const int rows = all.pack.rows(int(all.lengths_q.total)) / all.block_m;
    ASSERT_LE(schedule.num_tiles(), (rows + 1 + all.batch + 1) * all.num_packs)
        << "more partial results than the rows need";
  }
  const int most_partials =
      schedule.num_splits > 0 ? schedule.num_tiles() * schedule.num_splits : 2 * num_blocks;
  ASSERT_TRUE(partials.empty() || *partials.rbegin() < most_partials);
}

}  // namespace fa3::hopper
