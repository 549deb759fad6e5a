// SPDX-License-Identifier: Apache-2.0
// Split-KV: for few queries and many keys, tiles are split along the keys, so that all SMs read. A
// CTA computes splits, which are combined afterwards (combine/). Lengths are read on the device.
// Plain numbers, tested on the host. Three ways (SplitKvSchedule::num_splits):
//
// Stream-K: the KV blocks of all tiles are concatenated, and each CTA takes a contiguous range of
// equal length. Hence a CTA finishes at most one tile that its predecessor began, its first, and
// begins at most one that its successor finishes, its last. Head packs may have concatenations of
// their own, side by side: CTAs that read the keys of the same tokens do so at the same time, which
// is faster where heads are neighbours in memory. In the concatenation tiles count as long as the
// longest. Where a causal mask makes them unequal they lie in pairs, the longest beside the
// shortest, which are equally long (PairedKvSchedule).
// Fixed splits: the keys of every tile are split into at most num_splits parts, whatever other
// sequences there are. So a sequence's result has the same bits in every batch. Packed sequences'
// query blocks are concatenated too: there are as many tiles as rows need, however unequal.
// Unsplit: tiles are found by their number, without the varlen metadata (sequence_tiles.h), which a
// small call would wait for.
#pragma once

#include <cstdint>

#include "engine/cuda/mask/row_blocks.h"
#include "engine/hopper/scheduler/split_kv_schedule.h"

namespace fa3::hopper {

// A range of key blocks, counted from the sequence's first key.
struct KvBlocks {
  int first;
  int count;
};

// A split of a tile, or all of it.
struct TileSplit {
  static constexpr int kNotSplit = -1;
  int m_block;
  int pack;
  KvBlocks blocks;
  int partial;  // where its results go; kNotSplit: they are the tile's
};

// A split tile, described by the CTA that has its first split.
struct CombineTile {
  cuda::QueryRows queries;
  int first_row;
  int num_splits;  // 0: the tile is not split
  int first_partial;
  int later_partials;
  int partial_step;

  FA3_HD constexpr int partial(int tile_split) const {
    return tile_split == 0 ? first_partial : later_partials + tile_split * partial_step;
  }
};

// The tiles that a CTA has splits of (combine_last.cuh).
struct CombineTiles {
  static constexpr int kMost = 2;
  CombineTile tiles[kMost];
  int count;
  bool is_last[kMost];
};

FA3_HD constexpr bool SplitKvSchedule::is_simple() const {
  const Lengths& k = sequences.lengths_k;
  const KeyPlaces& places = sequences.places;
  return !sequences.lengths_q.varlen && !k.in_one_tensor && !k.padded_left && !places.indexed &&
         (!places.elsewhere || places.entries >= sequences.batch);
}

FA3_HD constexpr SplitKvSchedule SplitKvSchedule::for_decoding(bool may_be_whole) const {
  SplitKvSchedule schedule = *this;
  schedule.sequences.lengths_q = {.max = sequences.lengths_q.max};
  schedule.mask = {.right = mask.right};
  schedule.num_splits = may_be_whole && num_splits == kUnsplit ? kUnsplit : kStreamK;
  schedule.most_m_blocks = 1;
  schedule.simple = true;
  return schedule;
}

FA3_HD constexpr bool SplitKvSchedule::is_for_decoding() const {
  return is_simple() && hides_right_only(mask) && num_splits <= kUnsplit && most_m_blocks == 1;
}

FA3_HD constexpr SequenceTiles SplitKvSchedule::sequence(int b) const {
  if (!simple) return sequences.sequence(b);
  const int32_t* used = sequences.lengths_k.seqused;
  const int rows = int(sequences.lengths_q.max), most = int(sequences.lengths_k.max);
  const int length = used != nullptr ? used[b] : most;
  SequenceTiles s{};
  s.queries = {.batch = b, .count = rows, .used = rows};
  s.keys = {b, 0, within(length, most)};
  s.order = order_of(rows);
  s.number = b;
  return s;
}

FA3_HD constexpr int SplitKvSchedule::within(int length, int most) {
  return length < 0 ? 0 : length < most ? length : most;
}

FA3_HD constexpr TileOrder SplitKvSchedule::order_of(int queries) const {
  const int rows = sequences.pack.rows(queries);
  const int m_blocks =
      simple && most_m_blocks == 1 ? 1 : (rows + sequences.block_m - 1) / sequences.block_m;
  return {m_blocks, sequences.num_packs, 1, 0};
}

FA3_HD constexpr KvBlocks SplitKvSchedule::blocks_of(const SequenceTiles& s, int m_block) const {
  const cuda::PackGqa pack = sequences.pack;
  const int first_row = m_block * sequences.block_m;
  const int begin = pack.query(first_row), past = pack.query(first_row + sequences.block_m);
  const int used = s.queries.used;
  if (begin >= used) return {0, 1};
  const auto seen = [&](const MaskRuleOf<int>& rule) -> KvBlocks {
    const KeyBlocks blocks = visited_blocks(
        block_range(rule, begin, past < used ? past : used, used, s.keys.count), block_n);
    return {blocks.first, blocks.end - blocks.first};
  };
  if (hides_right_only(mask)) return seen({.right = mask.right});
  return seen(mask);
}

FA3_HD constexpr int SplitKvSchedule::most_blocks(const SequenceTiles& s) const {
  const int all = (s.keys.count + block_n - 1) / block_n;
  int most = all > 1 ? all : 1;
  if (hides_right_only(mask)) return most;
  if (mask.left != mask.kUnbounded && mask.right != mask.kUnbounded) {
    const int queries = sequences.pack.query(sequences.block_m);
    const unsigned reach = unsigned(mask.left) + unsigned(mask.right) + unsigned(queries);
    const int in_window = int(reach / unsigned(block_n)) + 2;
    if (in_window < most) most = in_window;
  }
  if (mask.chunk != mask.kNoChunks) {  // the chunks of the first and the last query
    const int queries = sequences.pack.query(sequences.block_m);
    const int64_t in_chunks = (2 * int64_t{mask.chunk} + queries) / block_n + 2;
    if (in_chunks < most) most = int(in_chunks);
  }
  return most;
}

FA3_HD constexpr int SplitKvSchedule::length_of(const SequenceTiles& s) const {
  if (!is_stream_k()) return s.order.num_m_blocks;
  return s.order.num_m_blocks * (s.order.num_packs >> groups_log2) * most_blocks(s);
}

FA3_HD constexpr int SplitKvSchedule::add(int length, int other) {
  const int sum = length + other;
  return sum < kMostConcatenated ? sum : kMostConcatenated;
}

FA3_HD constexpr bool SplitKvSchedule::concatenates_tiles() const {
  return num_splits > kUnsplit && sequences.lengths_q.in_one_tensor;
}

FA3_HD constexpr int SplitKvSchedule::num_tiles() const {
  const int rows = sequences.lengths_q.in_one_tensor ? int(sequences.lengths_q.total) : 0;
  const int m_blocks = (sequences.pack.rows(rows) + sequences.block_m - 1) / sequences.block_m;
  const int of_sequences =
      concatenates_tiles() ? sequences.batch + 1 : sequences.batch * most_m_blocks;
  return (of_sequences + m_blocks) * sequences.num_packs;
}

// A schedule of tiles in pairs under stream-K, for sequences of one length that the host knows.
struct PairedKvSchedule : SplitKvSchedule {
  static constexpr bool kMayPair = true;

  // Query blocks m and num_m_blocks - 1 - m of a sequence are neighbours, the longer one first, and
  // have this many KV blocks or fewer together; the one in the middle has half as many. 0: they are
  // not.
  int pair_blocks = 0;

  FA3_HD constexpr bool in_pairs() const { return pair_blocks > 0; }
  // The blocks of a pack's tiles in pairs.
  FA3_HD constexpr int blocks_of_pairs(int m_blocks) const {
    return int((unsigned(m_blocks) * unsigned(pair_blocks) + 1) / 2);
  }
  FA3_HD constexpr int length_of(const SequenceTiles& s) const {
    if (!in_pairs()) return SplitKvSchedule::length_of(s);
    return blocks_of_pairs(s.order.num_m_blocks) * (s.order.num_packs >> groups_log2);
  }
};

// The fewest that pair_blocks may be for the tiles of a sequence.
FA3_HD constexpr int most_blocks_of_pair(const SplitKvSchedule& schedule, const SequenceTiles& s) {
  const int m_blocks = s.order.num_m_blocks;
  int most = 0;
  for (int m_block = 0; 2 * m_block < m_blocks; ++m_block) {
    const int other = m_blocks - 1 - m_block, blocks = schedule.blocks_of(s, m_block).count;
    const int both = other > m_block ? blocks + schedule.blocks_of(s, other).count : 2 * blocks - 1;
    if (both > most) most = both;
  }
  return most;
}

}  // namespace fa3::hopper
