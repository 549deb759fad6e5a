// SPDX-License-Identifier: Apache-2.0
// Which splits one CTA computes, one after the other, by a schedule of split_kv.h. Plain numbers,
// tested on the host. Next: sequence_window.cuh.
#pragma once

#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {

// Concatenated KV blocks, in ranges of equal length, one for each CTA.
struct StreamKRanges {
  int kv_blocks = 0;  // all of them
  int length = 1;

  static FA3_HD constexpr StreamKRanges of(int kv_blocks, int count) {
    return {kv_blocks, int(unsigned(kv_blocks + count - 1) / unsigned(count))};
  }
  FA3_HD constexpr int begin(int range) const {
    return range * length < kv_blocks ? range * length : kv_blocks;
  }
  FA3_HD constexpr int range_of(int kv_block) const {
    return int(unsigned(kv_block) / unsigned(length));
  }
};

// Where a block of the concatenation lies.
struct BlockPlace {
  int sequence;
  int offset;  // among the sequence's blocks
};

// The splits of one CTA, one after the other. Sequences: looks up sequences, and which one has a
// block of the concatenation (sequence_window.cuh).
template <class Sequences, class Schedule = SplitKvSchedule>
class SplitIterator {
 public:
  FA3_HD constexpr SplitIterator(const Schedule& schedule, const Sequences& sequences, int block,
                                 int num_blocks)
      : schedule_(schedule),
        sequences_(sequences),
        num_ctas_(num_blocks),
        number_(block),
        next_(block) {}

  FA3_HD constexpr bool done() const {
    return schedule_.is_stream_k() ? kv_block_ == end_
                                   : next_ >= schedule_.num_tiles() * schedule_.num_splits;
  }

  // The next split and its sequence; false: there is nothing in it. One place looks up sequences:
  // the code is inlined, and the warps that run it have few registers.
  FA3_HD constexpr bool next(SequenceTiles& s, TileSplit& tile_split) {
    if (!knows_length()) look_up_length();
    const bool is_stream_k = schedule_.is_stream_k();
    combine_index_ = -1;
    if (is_stream_k && kv_block_ == end_) return false;
    int block = kv_block_;
    if (!is_stream_k) {
      number_ = next_;
      next_ += num_ctas_;
      block = int(unsigned(number_) / unsigned(schedule_.num_splits * packs()));
    }
    const BlockPlace place = place_of(block);
    s = sequences_.sequence(place.sequence);
    return is_stream_k ? next_of_range(place, s, tile_split)
                       : next_fixed_split(place, s, tile_split);
  }

  // The entry of the combine list that the last split describes its tile in; < 0: none. And what it
  // says there.
  FA3_HD constexpr int combine_index() const { return combine_index_; }
  FA3_HD constexpr CombineTile combine_tile(const TileSplit& tile_split) const {
    CombineTile combine{.first_row = tile_split.m_block * schedule_.sequences.block_m,
                        .num_splits = 0,
                        .first_partial = tile_split.partial,
                        .later_partials = number_,
                        .partial_step = schedule_.is_stream_k() ? 1 << schedule_.groups_log2 : 1};
    if (tile_split.partial == TileSplit::kNotSplit) return combine;
    combine.num_splits =
        schedule_.is_stream_k()
            ? ranges_.range_of(tile_kv_block_ + tile_blocks_ - 1) - range() + 1
            : (tile_blocks_ + tile_split.blocks.count - 1) / tile_split.blocks.count;
    return combine;
  }
  // Stream-K: how many splits the tile has behind the last one, if that opens it; else 0.
  FA3_HD constexpr int later_splits(const TileSplit& tile_split) const {
    if (tile_split.partial < num_ctas_) return 0;  // or it is not split
    return ranges_.range_of(tile_kv_block_ + tile_blocks_ - 1) - range();
  }
  // combine_tile() for stream-K, whichever split of the tile it is.
  FA3_HD constexpr CombineTile combine_tile_of_range(const TileSplit& tile_split) const {
    const int step = 1 << schedule_.groups_log2, first = ranges_.range_of(tile_kv_block_);
    const int opener = (first << schedule_.groups_log2) + (number_ & (step - 1));
    return {.first_row = tile_split.m_block * schedule_.sequences.block_m,
            .num_splits = ranges_.range_of(tile_kv_block_ + tile_blocks_ - 1) - first + 1,
            .first_partial = opener + num_ctas_,
            .later_partials = opener,
            .partial_step = step};
  }

 private:
  FA3_HD constexpr bool knows_length() const { return end_ >= 0; }
  FA3_HD constexpr int range() const { return number_ >> schedule_.groups_log2; }

  FA3_HD constexpr int packs() const { return schedule_.sequences.num_packs; }

  FA3_HD constexpr void look_up_length() {
    if (schedule_.is_stream_k()) {
      ranges_ = StreamKRanges::of(sequences_.count_blocks(), num_ctas_ >> schedule_.groups_log2);
      kv_block_ = ranges_.begin(range());
      end_ = ranges_.begin(range() + 1);
    } else {
      end_ = schedule_.concatenates_tiles() ? sequences_.count_blocks() : 0;
    }
  }

  // The place of a block of the concatenation. Without one, sequences have most_m_blocks each.
  // After the last sequence come the rows that none owns; no sequence has a block behind those.
  FA3_HD constexpr BlockPlace place_of(int block) {
    const int batch = schedule_.sequences.batch, most = schedule_.most_m_blocks;
    if (schedule_.is_stream_k()) return sequences_.place_of(block);
    if (schedule_.concatenates_tiles()) {
      return block < end_ ? sequences_.place_of(block) : BlockPlace{batch, INT32_MAX};
    }
    const int b = block < batch * most ? int(unsigned(block) / unsigned(most)) : batch;
    return {b, block - b * most};
  }

  static FA3_HD constexpr int quotient(int a, int b) {  // most often 0
    return a < b ? 0 : int(unsigned(a) / unsigned(b));
  }

  // A tile in a concatenation.
  struct TilePlace {
    int most;  // blocks that it has there; it may end before
    int tile;  // m_block, and all tiles of the packs before
    int packs_before;
    int from;  // the block of the tile in question
  };

  FA3_HD constexpr TilePlace tile_at(int offset, const SequenceTiles& s) const {
    if constexpr (Schedule::kMayPair) {
      if (schedule_.in_pairs()) return tile_of_pair_at(offset, s);
    }
    const int most = schedule_.most_blocks(s), m_blocks = s.order.num_m_blocks;
    const int tile = quotient(offset, most), packs_before = quotient(tile, m_blocks);
    return {most, tile, packs_before, offset - tile * most};
  }

  // The longer tile of a pair comes first, and has no blocks but its own.
  FA3_HD constexpr TilePlace tile_of_pair_at(int offset, const SequenceTiles& s) const {
    const int m_blocks = s.order.num_m_blocks, of_pack = schedule_.blocks_of_pairs(m_blocks);
    const int packs_before = quotient(offset, of_pack), tiles_before = packs_before * m_blocks;
    offset -= packs_before * of_pack;
    const int pair = quotient(offset, schedule_.pair_blocks);
    const int before = pair * schedule_.pair_blocks, left = of_pack - before;
    const int most = left < schedule_.pair_blocks ? left : schedule_.pair_blocks;
    const int from = offset - before, longer = m_blocks - 1 - pair;
    if (longer == pair) return {most, tiles_before + pair, packs_before, from};
    const int blocks = schedule_.blocks_of(s, longer).count;
    if (from < blocks) return {blocks, tiles_before + longer, packs_before, from};
    return {most - blocks, tiles_before + pair, packs_before, from - blocks};
  }

  FA3_HD constexpr bool next_of_range(const BlockPlace& place, const SequenceTiles& s,
                                      TileSplit& tile_split) {
    const auto [most, tile, packs_before, from] = tile_at(place.offset, s);
    const int taken = most - from < end_ - kv_block_ ? most - from : end_ - kv_block_;
    tile_kv_block_ = kv_block_ - from;
    kv_block_ += taken;
    tile_split.pack =
        (packs_before << schedule_.groups_log2) + number_ - (range() << schedule_.groups_log2);
    tile_split.m_block = tile - packs_before * s.order.num_m_blocks;
    const KvBlocks all = schedule_.blocks_of(s, tile_split.m_block);
    const int end = from + taken < all.count ? from + taken : all.count;
    tile_split.blocks = {all.first + from, end - from};
    tile_blocks_ = all.count;
    const bool opens = from == 0, is_whole = opens && end == all.count;
    tile_split.partial = is_whole ? TileSplit::kNotSplit : number_ + (opens ? num_ctas_ : 0);
    if (opens && schedule_.combine_by_tile) {
      combine_index_ =
          (s.number * schedule_.most_m_blocks + tile_split.m_block) * s.order.num_packs +
          tile_split.pack;
    } else if (opens && !is_whole) {
      combine_index_ = number_;
    }
    return end > from;
  }

  FA3_HD constexpr bool next_fixed_split(const BlockPlace& place, const SequenceTiles& s,
                                         TileSplit& tile_split) {
    const int tile = int(unsigned(number_) / unsigned(schedule_.num_splits));
    const int part = number_ - tile * schedule_.num_splits;
    tile_split.pack = int(unsigned(tile) % unsigned(packs()));
    const bool exists = place.offset < s.order.num_m_blocks;
    tile_split.m_block = exists ? place.offset : 0;
    const KvBlocks all = exists ? schedule_.blocks_of(s, tile_split.m_block) : KvBlocks{0, 0};
    const int length = (all.count + schedule_.num_splits - 1) / schedule_.num_splits;
    const int from = part * length;
    const int end = from + length < all.count ? from + length : all.count;
    tile_split.blocks = {all.first + from, end - from};
    tile_split.partial = length < all.count ? number_ : TileSplit::kNotSplit;
    tile_blocks_ = all.count;
    if (schedule_.num_splits > SplitKvSchedule::kUnsplit && part == 0) combine_index_ = tile;
    return end > from;
  }

  Schedule schedule_;
  Sequences sequences_;
  int num_ctas_;
  int number_;  // the CTA's range; with fixed splits the last split, counted over all tiles
  int next_;    // fixed splits: the next one

  // The last split's tile:
  int combine_index_ = -1;
  int tile_blocks_ = 0;
  int tile_kv_block_ = 0;  // its first

  StreamKRanges ranges_;
  int kv_block_ = 0;  // the range goes on from here
  int end_ = -1;      // of the range, or of all query blocks; < 0: not known yet
};

}  // namespace fa3::hopper
