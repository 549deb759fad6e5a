// SPDX-License-Identifier: Apache-2.0
// Few queries and many keys: the tiles are cut along the keys, so that all multiprocessors read. What a
// thread block computes of a tile is a piece, merged with the others afterwards (../merge_pieces.h).
// The cut follows the lengths that the device reads. Plain numbers, tested on the host.
//
// Equal shares: the key blocks of all tiles, one tile after the other, are one row of units; every
// thread block gets as many, in one run. So it has at most one piece that goes on from the thread
// block before (its first), and at most one that the next one goes on from (its last). Several head
// packs have rows of their own, side by side: thread blocks that read the keys of the same tokens do so
// at the same time, which memory rewards where heads are neighbours in it.
// Fixed parts: the keys of every tile are cut into at most so many parts, whatever other sequences
// there are; so the bits of a sequence's result do not depend on them.
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

struct KeySplit {
  SequenceList sequences;  // what is read of them; nothing is listed
  MaskRuleOf<int> mask;
  int block_n;
  int parts;              // of a tile at most; 0: equal shares
  int most_m_blocks;      // of a sequence's queries
  int rows_of_units = 1;  // of equal shares; divides the number of head packs

  // What some row of a tile sees; a tile whose rows see nothing visits one block all the same.
  FA3_HD constexpr BlockRun blocks_of(const SequenceTiles& s, int m_block) const {
    const cuda::HeadPack pack = sequences.pack;
    const int first_row = m_block * sequences.block_m;
    const int begin = pack.query(first_row), past = pack.query(first_row + sequences.block_m);
    const int used = s.queries.used;
    if (begin >= used) return {0, 1};
    const KeyBlocks blocks = visited_blocks(
        block_range(mask, begin, past < used ? past : used, used, s.keys.count), block_n);
    return {blocks.first, blocks.end - blocks.first};
  }

  // The most blocks that a tile of the sequence may have.
  FA3_HD constexpr int most_blocks(const SequenceTiles& s) const {
    const int all = (s.keys.count + block_n - 1) / block_n;
    int most = all > 1 ? all : 1;
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
    return s.order.num_m_blocks * (s.order.num_packs / rows_of_units) * most_blocks(s);
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

// Of equal shares, the one of a thread block: where it begins, and how long it is.
struct Share {
  int sequence = 0;
  int offset = 0;  // in the sequence's units
  int left = 0;
  int whole = 0;  // units of every share but the last
};

// The pieces of one thread block, one after the other.
class PieceStream {
 public:
  FA3_HD constexpr PieceStream(const KeySplit& split, const Share& share, int block, int num_blocks)
      : split_(split), share_(share), block_(block), num_blocks_(num_blocks), number_(block) {}

  FA3_HD constexpr bool done() const {
    return split_.parts > 0 ? number_ >= split_.num_tiles() * split_.parts : share_.left <= 0;
  }

  // The next piece and its sequence; false: there is nothing in it. If it opens a cut tile, or fixed
  // parts say of their first tile's part that nothing is cut, `cuts` gets to know.
  FA3_HD constexpr bool next(SequenceTiles& s, KeyPiece& piece, CutTile* cuts) {
    return split_.parts > 0 ? next_part(s, piece, cuts) : next_of_share(s, piece, cuts);
  }

 private:
  FA3_HD constexpr bool next_of_share(SequenceTiles& s, KeyPiece& piece, CutTile* cuts) {
    for (;;) {
      s = split_.sequences.sequence(share_.sequence);
      const int units = split_.units_of(s);
      if (share_.offset < units) break;
      share_.offset -= units;
      ++share_.sequence;
    }
    const int most = split_.most_blocks(s);
    const int tile = int(unsigned(share_.offset) / unsigned(most));
    const int from = share_.offset - tile * most;
    const int taken = most - from < share_.left ? most - from : share_.left;
    share_.offset += taken;
    share_.left -= taken;
    const int packs_before = int(unsigned(tile) / unsigned(s.order.num_m_blocks));
    const int rows = split_.rows_of_units;
    piece.pack = packs_before * rows + block_ % rows;
    piece.m_block = tile - packs_before * s.order.num_m_blocks;
    const BlockRun all = split_.blocks_of(s, piece.m_block);
    const int end = from + taken < all.count ? from + taken : all.count;
    piece.blocks = {all.first + from, end - from};
    if (end <= from) return false;
    const bool opens = from == 0, is_whole = opens && end == all.count;
    piece.slot = is_whole ? KeyPiece::kWhole : opens ? num_blocks_ + block_ : block_;
    if (opens && !is_whole) {
      const int more = (all.count - end + share_.whole - 1) / share_.whole;
      cuts[block_] = cut_of(s, piece, 1 + more, block_, rows);
    }
    return true;
  }

  FA3_HD constexpr bool next_part(SequenceTiles& s, KeyPiece& piece, CutTile* cuts) {
    const int number = number_;
    number_ += num_blocks_;
    const int tile = int(unsigned(number) / unsigned(split_.parts));
    const int part = number - tile * split_.parts;
    const SequenceList& all_sequences = split_.sequences;
    const int row = int(unsigned(tile) / unsigned(all_sequences.num_packs));
    const int owned_rows = all_sequences.batch * split_.most_m_blocks;
    const int b = row < owned_rows ? int(unsigned(row) / unsigned(split_.most_m_blocks))
                                   : all_sequences.batch;
    piece.pack = tile - row * all_sequences.num_packs;
    piece.m_block = row - b * split_.most_m_blocks;
    s = all_sequences.sequence(b);
    const bool exists = piece.m_block < s.order.num_m_blocks;
    const BlockRun all = exists ? split_.blocks_of(s, piece.m_block) : BlockRun{0, 0};
    const int length = (all.count + split_.parts - 1) / split_.parts;
    const int num_pieces = length > 0 ? (all.count + length - 1) / length : 0;
    const int from = part * length;
    const int end = from + length < all.count ? from + length : all.count;
    piece.blocks = {all.first + from, end - from};
    piece.slot = num_pieces > 1 ? number : KeyPiece::kWhole;
    if (part == 0 && row < owned_rows) {
      cuts[tile] = cut_of(s, piece, num_pieces > 1 ? num_pieces : 0, number, 1);
    }
    return end > from;
  }

  FA3_HD constexpr CutTile cut_of(const SequenceTiles& s, const KeyPiece& piece, int num_pieces,
                                  int later_slots, int slot_step) const {
    CutTile cut{.queries = s.queries,
                .first_row = piece.m_block * split_.sequences.block_m,
                .num_pieces = num_pieces,
                .first_slot = piece.slot,
                .later_slots = later_slots,
                .slot_step = slot_step};
    cut.queries.pack = piece.pack;
    return cut;
  }

  const KeySplit& split_;
  Share share_;
  int block_;
  int num_blocks_;
  int number_;  // of the next part, of all tiles' fixed parts
};

}  // namespace fa3::hopper
