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
struct KvBlockPlace {
  int sequence;
  int offset;  // among the sequence's blocks
};

// The splits of one CTA, one after the other. Sequences: looks up sequences, and which one has a KV
// block (sequence_window.cuh).
template <class Sequences>
class SplitIterator {
 public:
  FA3_HD constexpr SplitIterator(const SplitKvSchedule& schedule, const Sequences& sequences,
                                 int block, int num_blocks)
      : schedule_(schedule),
        sequences_(sequences),
        num_ctas_(num_blocks),
        number_(block),
        next_(block) {}

  FA3_HD constexpr bool done() const {
    return schedule_.is_stream_k() ? kv_block_ == end_
                                   : next_ >= schedule_.num_tiles() * schedule_.num_splits;
  }

  // The next split and its sequence; false: there is nothing in it.
  FA3_HD constexpr bool next(SequenceTiles& s, TileSplit& tile_split) {
    return schedule_.is_stream_k() ? next_of_range(s, tile_split) : next_fixed_split(s, tile_split);
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
  // The same for stream-K, whichever split of the tile it is.
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
  FA3_HD constexpr bool knows_range() const { return end_ >= 0; }
  FA3_HD constexpr int range() const { return number_ >> schedule_.groups_log2; }

  FA3_HD constexpr bool next_of_range(SequenceTiles& s, TileSplit& tile_split) {
    combine_index_ = -1;
    if (!knows_range()) {
      ranges_ = StreamKRanges::of(sequences_.count_kv_blocks(), num_ctas_ >> schedule_.groups_log2);
      kv_block_ = ranges_.begin(range());
      end_ = ranges_.begin(range() + 1);
    }
    if (kv_block_ == end_) return false;
    const KvBlockPlace place = sequences_.place_of(kv_block_);
    s = sequences_.sequence(place.sequence);
    const int most = schedule_.most_blocks(s), m_blocks = s.order.num_m_blocks;
    const auto quotient = [](int a, int b) {  // most often 0
      return a < b ? 0 : int(unsigned(a) / unsigned(b));
    };
    const int tile = quotient(place.offset, most), packs_before = quotient(tile, m_blocks);
    const int from = place.offset - tile * most;
    const int taken = most - from < end_ - kv_block_ ? most - from : end_ - kv_block_;
    tile_kv_block_ = kv_block_ - from;
    kv_block_ += taken;
    tile_split.pack =
        (packs_before << schedule_.groups_log2) + number_ - (range() << schedule_.groups_log2);
    tile_split.m_block = tile - packs_before * m_blocks;
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

  FA3_HD constexpr bool next_fixed_split(SequenceTiles& s, TileSplit& tile_split) {
    number_ = next_;
    next_ += num_ctas_;
    const int tile = int(unsigned(number_) / unsigned(schedule_.num_splits));
    const int part = number_ - tile * schedule_.num_splits;
    const VarlenMetadata& all_sequences = schedule_.sequences;
    const int row = int(unsigned(tile) / unsigned(all_sequences.num_packs));
    const int owned_rows = all_sequences.batch * schedule_.most_m_blocks;
    const int b = row < owned_rows ? int(unsigned(row) / unsigned(schedule_.most_m_blocks))
                                   : all_sequences.batch;
    tile_split.pack = tile - row * all_sequences.num_packs;
    tile_split.m_block = row - b * schedule_.most_m_blocks;
    s = sequences_.sequence(b);
    const bool exists = tile_split.m_block < s.order.num_m_blocks;
    const KvBlocks all = exists ? schedule_.blocks_of(s, tile_split.m_block) : KvBlocks{0, 0};
    const int length = (all.count + schedule_.num_splits - 1) / schedule_.num_splits;
    const int from = part * length;
    const int end = from + length < all.count ? from + length : all.count;
    tile_split.blocks = {all.first + from, end - from};
    tile_split.partial = length < all.count ? number_ : TileSplit::kNotSplit;
    tile_blocks_ = all.count;
    combine_index_ =
        schedule_.num_splits > SplitKvSchedule::kUnsplit && part == 0 && row < owned_rows ? tile
                                                                                          : -1;
    return end > from;
  }

  SplitKvSchedule schedule_;
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
  int end_ = -1;      // < 0: the range is not known yet
};

}  // namespace fa3::hopper
