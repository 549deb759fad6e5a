// SPDX-License-Identifier: Apache-2.0
// Which tile a CTA has: query rows of one sequence and the head pack that they are of; or which
// split of its key blocks. Plain numbers, tested on the host. A CTA has one tile or split, and the
// GPU starts CTAs in the order of their numbers. Next: forward_params.h.
#pragma once

#include "engine/cuda/tile/divisor.h"
#include "engine/cuda/tile/sequences.h"
#include "engine/cuda/tile/tile_order.h"

namespace fa3::ampere {

using cuda::Divisor;
using cuda::PackGqa;
using cuda::SequenceRows;
using cuda::TileIndex;

struct TileOfSequence {
  SequenceRows rows;
  int sequence;
  int pack;
  int first_row;  // of the tile, in its sequence; heads packed. Negative: the CTA has no tile
};

// A half-open range of a tile's key blocks.
struct KeyBlockSplit {
  int first, end;
};

struct TileSchedule {
  Lengths lengths_q;
  Lengths lengths_k;
  KeyPlaces places;
  int batch;
  int block_m;
  PackGqa pack;
  Divisor num_packs;
  cuda::TileOrderOf<Divisor> order;  // of sequences that are alike
  bool by_sequence;  // lengths differ: each sequence has as many numbers as the longest may need
  Divisor most_m_blocks;   // of a sequence
  Divisor num_splits = 1;  // of each tile's key blocks; those of a tile are neighbours

  FA3_HD constexpr int tile_of(int cta) const { return cta / num_splits; }
  FA3_HD constexpr int split_of(int cta) const { return cta % num_splits; }
  // Equal parts, as far as blocks divide; the last are empty where there are too few.
  FA3_HD constexpr KeyBlockSplit split(int number, int first, int end) const {
    const int blocks = end > first ? end - first : 0;
    const int least = blocks / num_splits, longer = blocks - least * num_splits;
    const int begin = first + number * least + (number < longer ? number : longer);
    return {begin, begin + least + (number < longer ? 1 : 0)};
  }

  FA3_HD constexpr int num_m_blocks(const SequenceRows& rows) const {
    return (pack.rows(rows.queries.count) + block_m - 1) / block_m;
  }

  // Packed rows that no sequence owns come last.
  FA3_HD constexpr TileOfSequence tile(int number) const {
    return by_sequence ? tile_of_sequences(number) : tile_of_equals(order.tile(number));
  }

 private:
  // A CTA does nothing else meanwhile, so it reads no lengths that it knows.
  FA3_HD constexpr TileOfSequence tile_of_equals(TileIndex at) const {
    const int queries = int(lengths_q.max), keys = int(lengths_k.max);
    return {
        .rows =
            {{.batch = at.batch, .pack = at.pack, .begin = 0, .count = queries, .used = queries},
             {.batch = at.batch, .begin = 0, .count = keys}},
        .sequence = at.batch,
        .pack = at.pack,
        .first_row = at.m_block * block_m};
  }

  FA3_HD constexpr TileOfSequence tile_of_sequences(int number) const {
    const int owned = batch * most_m_blocks * num_packs;
    const int row = number / most_m_blocks, rest = number - owned;
    const int sequence = number < owned ? row / num_packs : batch;
    const int own_pack = number < owned ? row % num_packs : rest % num_packs;
    const int from_last = number < owned ? number % most_m_blocks : rest / num_packs;
    TileOfSequence tile{
        .rows = cuda::rows_of_sequence(lengths_q, lengths_k, places, batch, sequence),
        .sequence = sequence,
        .pack = own_pack,
        .first_row = 0};
    tile.rows.queries.pack = own_pack;
    tile.first_row = (num_m_blocks(tile.rows) - 1 - from_last) * block_m;
    return tile;
  }
};

}  // namespace fa3::ampere
