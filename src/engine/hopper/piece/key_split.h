// SPDX-License-Identifier: Apache-2.0
// Few queries and many keys: the tiles are cut along the keys, so that all multiprocessors read. What a
// thread block computes of a tile is a piece, merged with the others afterwards (../merge_pieces.h).
// The cut follows the lengths that the device reads. Plain numbers, tested on the host.
//
// Runs: the key blocks of all tiles, one tile after the other, are one row of units; every thread
// block gets a run of as many. So it has at most one piece that goes on from the thread block before
// (its first), and at most one that the next one goes on from (its last). Several head packs have rows
// of their own, side by side: thread blocks that read the keys of the same tokens do so at the same
// time, which memory rewards where heads are neighbours in it.
// Fixed parts: the keys of every tile are cut into at most so many parts, whatever other sequences
// there are; so the bits of a sequence's result do not depend on them. One part: tiles stay whole, and
// need no list (sequence_tiles.h), which a small call would wait for.
#pragma once

#include "engine/hopper/piece/row_blocks.h"
#include "engine/hopper/piece/sequence_tiles.h"

namespace fa3::hopper {

// A run of key blocks, counted from the sequence's first key.
struct BlockRun {
  int first;
  int count;
};

// A part of a tile, or all of it.
struct KeyPiece {
  static constexpr int kWhole = -1;
  int m_block;
  int pack;
  BlockRun blocks;
  int slot;  // of the piece's results; kWhole: they are the tile's
};

// A tile in pieces, as its first piece tells.
struct CutTile {
  cuda::QueryRows queries;
  int first_row;
  int num_pieces;  // 0: this is none
  int first_slot;
  int later_slots;
  int slot_step;

  FA3_HD constexpr int slot(int piece) const {
    return piece == 0 ? first_slot : later_slots + piece * slot_step;
  }
};

// What a thread block has pieces of (../merge_last.cuh).
struct CutTiles {
  static constexpr int kMost = 2;
  CutTile tiles[kMost];
  int count;
  bool is_last[kMost];
};

// Most often it is so: rules with a left side are told apart, so that the others take few instructions.
FA3_HD constexpr bool hides_right_only(const MaskRuleOf<int>& mask) {
  return mask.left == mask.kUnbounded && mask.chunk == mask.kNoChunks;
}

struct KeySplit {
  SequenceList sequences;  // what is read of them; nothing is listed
  MaskRuleOf<int> mask;
  int block_n;
  int parts;            // of a tile at most; 0: runs, 1: none is cut
  int most_m_blocks;    // of a sequence's queries
  bool simple = false;  // is_simple(), found on the host

  // Of runs:
  int rows_log2 = 0;          // 2^rows_log2 rows of units, a divisor of the number of head packs
  bool told_by_tile = false;  // the merge knows all tiles by number; else a cut one by its run

  // Queries are dense, and the keys of each sequence are the first of its own entry: as in most steps of
  // decoding, whose smallest calls wait for little else than to know this.
  FA3_HD constexpr bool is_simple() const {
    const Lengths& k = sequences.lengths_k;
    const KeyPlaces& places = sequences.places;
    return sequences.lengths_q.alike() && !k.packed() && k.left_padding == nullptr &&
           places.batch_index == nullptr &&
           (!places.elsewhere || places.entries >= sequences.batch);
  }

  // The same, where that much is known: runs of simple sequences, whose queries are one tile for each
  // head pack, and which hide keys on the right alone. For the compiler, which leaves out the rest.
  FA3_HD constexpr KeySplit for_decoding() const {
    KeySplit split = *this;
    split.sequences.lengths_q = {.max = sequences.lengths_q.max};
    split.mask = {.right = mask.right};
    split.parts = 0;
    split.most_m_blocks = 1;
    split.simple = true;
    return split;
  }
  FA3_HD constexpr bool is_for_decoding() const {
    return is_simple() && hides_right_only(mask) && parts == 0 && most_m_blocks == 1;
  }

  FA3_HD constexpr SequenceTiles sequence(int b) const {
    if (!simple) return sequences.sequence(b);
    const int32_t* used = sequences.lengths_k.seqused;
    const int rows = int(sequences.lengths_q.max), most = int(sequences.lengths_k.max);
    const int told = used != nullptr ? used[b] : most;
    SequenceTiles s{};
    s.queries = {.batch = b, .count = rows, .used = rows};
    s.keys = {b, 0, within(told, most)};
    s.order = order_of(rows);
    s.number = b;
    return s;
  }
  static FA3_HD constexpr int within(int told, int most) {
    return told < 0 ? 0 : told < most ? told : most;
  }
  FA3_HD constexpr TileOrder order_of(int queries) const {
    const int rows = sequences.pack.rows(queries);
    const int m_blocks =
        simple && most_m_blocks == 1 ? 1 : (rows + sequences.block_m - 1) / sequences.block_m;
    return {m_blocks, sequences.num_packs, 1, 0};
  }

  // What some row of a tile sees; a tile whose rows see nothing visits one block all the same.
  FA3_HD constexpr BlockRun blocks_of(const SequenceTiles& s, int m_block) const {
    const cuda::HeadPack pack = sequences.pack;
    const int first_row = m_block * sequences.block_m;
    const int begin = pack.query(first_row), past = pack.query(first_row + sequences.block_m);
    const int used = s.queries.used;
    if (begin >= used) return {0, 1};
    const auto seen = [&](const MaskRuleOf<int>& rule) -> BlockRun {
      const KeyBlocks blocks = visited_blocks(
          block_range(rule, begin, past < used ? past : used, used, s.keys.count), block_n);
      return {blocks.first, blocks.end - blocks.first};
    };
    if (hides_right_only(mask)) return seen({.right = mask.right});
    return seen(mask);
  }

  // The most blocks that a tile of the sequence may have.
  FA3_HD constexpr int most_blocks(const SequenceTiles& s) const {
    const int all = (s.keys.count + block_n - 1) / block_n;
    int most = all > 1 ? all : 1;
    if (hides_right_only(mask)) return most;
    if (mask.left != mask.kUnbounded && mask.right != mask.kUnbounded) {
      const int queries = sequences.pack.query(sequences.block_m);
      const int in_window = (mask.left + mask.right + queries) / block_n + 2;
      if (in_window < most) most = in_window;
    }
    if (mask.chunk !=
        mask.kNoChunks) {  // those of the first and the last query, and of all between
      const int queries = sequences.pack.query(sequences.block_m);
      const int64_t in_chunks = (2 * int64_t{mask.chunk} + queries) / block_n + 2;
      if (in_chunks < most) most = int(in_chunks);
    }
    return most;
  }

  // Units of a sequence in a row.
  FA3_HD constexpr int units_of(const SequenceTiles& s) const {
    return s.order.num_m_blocks * (s.order.num_packs >> rows_log2) * most_blocks(s);
  }

  // Tiles that fixed parts count, cut or not.
  FA3_HD constexpr int num_tiles() const {
    const Lengths& q = sequences.lengths_q;
    const int unowned =
        q.packed() ? (sequences.pack.rows(int(q.total)) + sequences.block_m - 1) / sequences.block_m
                   : 0;
    return (sequences.batch * most_m_blocks + unowned) * sequences.num_packs;
  }
};

// A row of units in runs, one for each thread block of the row.
struct Runs {
  int units = 0;  // of the row
  int length = 1;

  static FA3_HD constexpr Runs of(int units, int count) {
    return {units, int(unsigned(units + count - 1) / unsigned(count))};
  }
  FA3_HD constexpr int begin(int run) const { return run * length < units ? run * length : units; }
  FA3_HD constexpr int run_of(int unit) const { return int(unsigned(unit) / unsigned(length)); }
};

// Where a unit lies.
struct UnitPlace {
  int sequence;
  int offset;  // in the sequence's units
};

// The pieces of one thread block, one after the other. Sequences: who tells what is read of a sequence,
// and where units lie: a warp's view of them (sequence_window.cuh).
template <class Sequences>
class PieceStream {
 public:
  FA3_HD constexpr PieceStream(const KeySplit& split, const Sequences& sequences, int block,
                               int num_blocks)
      : split_(split),
        sequences_(sequences),
        num_blocks_(num_blocks),
        number_(block),
        next_(block) {}

  FA3_HD constexpr bool done() const {
    return split_.parts > 0 ? next_ >= split_.num_tiles() * split_.parts : unit_ == end_;
  }

  // The next piece and its sequence; false: there is nothing in it.
  FA3_HD constexpr bool next(SequenceTiles& s, KeyPiece& piece) {
    return split_.parts > 0 ? next_part(s, piece) : next_of_run(s, piece);
  }

  // Where the last piece is to tell of its tile; < 0: nowhere. And in how many pieces it is, or 0.
  FA3_HD constexpr int told_at() const { return told_at_; }
  FA3_HD constexpr CutTile cut_tile(const KeyPiece& piece) const {
    CutTile cut{.first_row = piece.m_block * split_.sequences.block_m,
                .num_pieces = 0,
                .first_slot = piece.slot,
                .later_slots = number_,
                .slot_step = split_.parts > 0 ? 1 : 1 << split_.rows_log2};
    if (piece.slot == KeyPiece::kWhole) return cut;
    cut.num_pieces = split_.parts > 0 ? (tile_blocks_ + piece.blocks.count - 1) / piece.blocks.count
                                      : runs_.run_of(tile_unit_ + tile_blocks_ - 1) - run() + 1;
    return cut;
  }
  // The same of a run, whichever piece it is.
  FA3_HD constexpr CutTile cut_tile_of_run(const KeyPiece& piece) const {
    const int step = 1 << split_.rows_log2, first = runs_.run_of(tile_unit_);
    const int opener = (first << split_.rows_log2) + (number_ & (step - 1));
    return {.first_row = piece.m_block * split_.sequences.block_m,
            .num_pieces = runs_.run_of(tile_unit_ + tile_blocks_ - 1) - first + 1,
            .first_slot = opener + num_blocks_,
            .later_slots = opener,
            .slot_step = step};
  }

 private:
  FA3_HD constexpr int run() const { return number_ >> split_.rows_log2; }

  FA3_HD constexpr bool next_of_run(SequenceTiles& s, KeyPiece& piece) {
    told_at_ = -1;
    if (end_ < 0) {
      runs_ = Runs::of(sequences_.count_units(), num_blocks_ >> split_.rows_log2);
      unit_ = runs_.begin(run());
      end_ = runs_.begin(run() + 1);
    }
    if (unit_ == end_) return false;
    const UnitPlace place = sequences_.place_of(unit_);
    s = sequences_.sequence(place.sequence);
    const int most = split_.most_blocks(s), m_blocks = s.order.num_m_blocks;
    const auto quotient = [](int a, int b) {  // most often 0
      return a < b ? 0 : int(unsigned(a) / unsigned(b));
    };
    const int tile = quotient(place.offset, most), packs_before = quotient(tile, m_blocks);
    const int from = place.offset - tile * most;
    const int taken = most - from < end_ - unit_ ? most - from : end_ - unit_;
    tile_unit_ = unit_ - from;
    unit_ += taken;
    piece.pack = (packs_before << split_.rows_log2) + number_ - (run() << split_.rows_log2);
    piece.m_block = tile - packs_before * m_blocks;
    const BlockRun all = split_.blocks_of(s, piece.m_block);
    const int end = from + taken < all.count ? from + taken : all.count;
    piece.blocks = {all.first + from, end - from};
    tile_blocks_ = all.count;
    const bool opens = from == 0, is_whole = opens && end == all.count;
    piece.slot = is_whole ? KeyPiece::kWhole : number_ + (opens ? num_blocks_ : 0);
    if (opens && split_.told_by_tile) {
      told_at_ = (s.number * split_.most_m_blocks + piece.m_block) * s.order.num_packs + piece.pack;
    } else if (opens && !is_whole) {
      told_at_ = number_;
    }
    return end > from;
  }

  FA3_HD constexpr bool next_part(SequenceTiles& s, KeyPiece& piece) {
    number_ = next_;
    next_ += num_blocks_;
    const int tile = int(unsigned(number_) / unsigned(split_.parts));
    const int part = number_ - tile * split_.parts;
    const SequenceList& all_sequences = split_.sequences;
    const int row = int(unsigned(tile) / unsigned(all_sequences.num_packs));
    const int owned_rows = all_sequences.batch * split_.most_m_blocks;
    const int b = row < owned_rows ? int(unsigned(row) / unsigned(split_.most_m_blocks))
                                   : all_sequences.batch;
    piece.pack = tile - row * all_sequences.num_packs;
    piece.m_block = row - b * split_.most_m_blocks;
    s = sequences_.sequence(b);
    const bool exists = piece.m_block < s.order.num_m_blocks;
    const BlockRun all = exists ? split_.blocks_of(s, piece.m_block) : BlockRun{0, 0};
    const int length = (all.count + split_.parts - 1) / split_.parts;
    const int from = part * length;
    const int end = from + length < all.count ? from + length : all.count;
    piece.blocks = {all.first + from, end - from};
    piece.slot = length < all.count ? number_ : KeyPiece::kWhole;
    tile_blocks_ = all.count;
    told_at_ = split_.parts > 1 && part == 0 && row < owned_rows ? tile : -1;
    return end > from;
  }

  KeySplit split_;
  Sequences sequences_;
  int num_blocks_;
  int number_;  // of the run; of the last piece among all tiles' fixed parts
  int next_;    // of fixed parts

  // Of the last piece's tile:
  int told_at_ = -1;
  int tile_blocks_ = 0;
  int tile_unit_ = 0;  // its first

  Runs runs_;
  int unit_ = 0;  // the run goes on from here
  int end_ = -1;  // < 0: nothing is known of it yet
};

}  // namespace fa3::hopper
