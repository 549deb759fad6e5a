// SPDX-License-Identifier: Apache-2.0
// The tiles of one thread block, one after the other, each as the record that the consumers get. Tiles
// of unequal length are drawn from a counter, when a thread block is free; others are dealt in turn,
// which needs no counter to be cleared; tiles that are cut, or found by number, come as pieces. Next:
// load_tma.cuh.
#pragma once

#include "engine/hopper/item_blocks.cuh"
#include "engine/hopper/piece/sequence_window.cuh"

namespace fa3::hopper {

struct NoPieces {};

template <ForwardConfig C>
class TileStream : private ItemBlocks<C> {
  using ItemBlocks<C>::blocks_of, ItemBlocks<C>::listed, ItemBlocks<C>::mask, ItemBlocks<C>::paged,
      ItemBlocks<C>::params_;

 public:
  using ItemBlocks<C>::cut;

  __device__ __forceinline__ TileStream(const ForwardParams& params, SequenceSmem* sequences,
                                        CutTiles* cut_tiles)
      : ItemBlocks<C>(params),
        tile_(int(blockIdx.x)),
        pieces_(pieces_of(params, sequences)),
        cut_tiles_(cut_tiles) {
    if (listed()) num_listed_ = *params.num_entries * params.order.num_packs;
    if (!C.decodes() && cut() && !params.split.told_by_tile) {
      params.cuts[blockIdx.x].num_pieces = 0;
    }
  }

  __device__ __forceinline__ bool done() const {
    if constexpr (C.cuts()) {
      if (cut()) return pieces_.done();
    }
    return tile_ >= (listed() ? num_listed_ : params_.order.num_tiles());
  }

  // Settles which tile is next. The later it is asked, the better the end of the work evens out; the
  // answer takes about a microsecond.
  __device__ __forceinline__ void draw_next() {
    if (cut()) return;
    const int stride = int(gridDim.x);
    next_tile_ = params_.ticket_counter ? draw_ticket() + stride : tile_ + stride;
  }
  __device__ __forceinline__ void advance() { tile_ = next_tile_; }

  // Where they come as pieces: the next one, as much of its record as tells where its keys lie. False:
  // there is no work in it.
  __device__ __forceinline__ bool name_piece(ItemOf<C>& item) {
    SequenceTiles s;
    KeyPiece piece;
    const bool exists = pieces_.next(s, piece);
    if (exists) {
      s.queries.pack = piece.pack;
      item.num_blocks = piece.blocks.count;
      item.first_row = piece.m_block * C.block_m;
      item.queries = s.queries;
      item.keys = s.keys;
      item.first_key = piece.blocks.first * C.block_n;
      item.place.slot = piece.slot;
      name_sequence(item, s.number);
    }
    if constexpr (C.decodes()) {
      if (exists && piece.slot != KeyPiece::kWhole) {
        CutTile& cut = cut_tiles_->tiles[num_cuts_++];
        cut = pieces_.cut_tile_of_run(piece);
        cut.queries = s.queries;
      }
      return exists;
    }
    const int at = pieces_.told_at();
    if (at >= 0) {
      CutTile cut = pieces_.cut_tile(piece);
      cut.queries = s.queries;
      params_.cuts[at] = cut;
    }
    return exists;
  }

  // The rest of its record.
  __device__ __forceinline__ void describe_piece(ItemOf<C>& item) const {
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      write(item.mine[w], blocks_of(item.first_row + w * kRowsPerWarpgroup, item.queries,
                                    item.keys.count, item.first_key, item.num_blocks));
    }
    for (unsigned char& corrections : item.corrections) corrections = 0;
  }

  // Writes the record of a whole tile, where it is read: the producer has no registers to spare for it.
  __device__ __forceinline__ void describe(ItemOf<C>& item) {
    if constexpr (C.general()) item.place.slot = KeyPiece::kWhole;
    if (listed()) {
      const int entry = tile_ / params_.order.num_packs;
      SequenceTiles s = params_.sequences[entry];
      const TileIndex index = s.order.tile(tile_ - s.first_entry * params_.order.num_packs);
      s.queries.pack = index.pack;
      name_sequence(item, s.number);
      describe(item, index.m_block, s.queries, s.keys);
    } else {
      const int rows = params_.seqlen_q;
      const TileIndex index = params_.order.tile(tile_);
      name_sequence(item, index.batch);
      describe(item, index.m_block, {index.batch, index.pack, 0, rows, rows},
               {index.batch, 0, params_.seqlen_k});
    }
  }

  // Of those that this thread block has pieces of.
  __device__ __forceinline__ int num_cuts() const {
    return num_cuts_;
  }

 private:
  using Sequences = std::conditional_t<C.decodes(), FewSequences, SequenceWindow>;
  using Pieces = std::conditional_t<C.cuts(), PieceStream<Sequences>, NoPieces>;

  // The split as the compiler may know it.
  static __device__ __forceinline__ KeySplit split_of(const ForwardParams& params) {
    KeySplit split = C.decodes() ? params.split.for_decoding() : params.split;
    split.block_n = C.block_n;
    split.sequences.block_m = C.block_m;
    return split;
  }
  static __device__ __forceinline__ Pieces pieces_of(const ForwardParams& params,
                                                     SequenceSmem* sequences) {
    if constexpr (C.decodes()) {
      const KeySplit split = split_of(params);
      return Pieces(split, FewSequences(split), int(blockIdx.x), int(gridDim.x));
    } else if constexpr (C.cuts()) {
      const KeySplit split = split_of(params);
      return Pieces(split, SequenceWindow(split, sequences->entries), int(blockIdx.x),
                    int(gridDim.x));
    } else {
      return {};
    }
  }

  __device__ __forceinline__ int draw_ticket() const {
    if constexpr (C.loads_by_warp()) {
      const int ticket = ptx::lane() == 0 ? atomicAdd(params_.ticket_counter, 1) : 0;
      return __shfl_sync(0xffffffff, ticket, 0);
    } else {
      return atomicAdd(params_.ticket_counter, 1);
    }
  }
  __device__ __forceinline__ void name_sequence(ItemOf<C>& item, int number) const {
    if constexpr (C.widens()) item.place.sequence = number;
    // Rows that no sequence owns borrow the first one's scales, which change nothing.
    if constexpr (C.e4m3 && C.general()) {
      item.place.sequence = number < params_.e4m3.sequences ? number : 0;
    }
  }

  // Both ends of a row's keys grow with the row: the first row's begin and the last one's end are the
  // tile's.
  __device__ __forceinline__ void describe(ItemOf<C>& item, int m_block,
                                           const cuda::QueryRows& queries,
                                           const KeyRows& keys) const {
    const int first_row = m_block * C.block_m;
    int first_key =
        mask().keys_of(params_.output.pack.query(first_row), queries.used, keys.count).begin;
    // So that boxes do not cross pages, nor blocks the ranges that scales are of.
    if (C.e4m3 && first_key > keys.count) first_key = keys.count;
    if (paged() || C.e4m3) first_key -= first_key % C.block_n;
    int num_blocks = 0;
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      const typename ItemOf<C>::Blocks blocks =
          blocks_of(first_row + w * kRowsPerWarpgroup, queries, keys.count, first_key, kAllBlocks);
      write(item.mine[w], blocks);
      if (blocks.count > num_blocks) num_blocks = blocks.count;
    }
    item.num_blocks = num_blocks;
    item.first_row = first_row;
    item.queries = queries;
    item.keys = keys;
    item.first_key = first_key;
    for (unsigned char& corrections : item.corrections) corrections = 0;
  }

  // A window's fields one by one: stores of four at once would take registers that the producer lacks.
  using Blocks = typename ItemOf<C>::Blocks;
  __device__ __forceinline__ void write(Blocks& to, const Blocks& blocks) const {
    if constexpr (C.general()) {
      to.count = blocks.count;
      to.masked_from = blocks.masked_from;
      to.ordinary_from = blocks.ordinary_from;
      to.edge = blocks.edge;
    } else {
      to = blocks;
    }
  }

  int tile_;
  int next_tile_ = 0;
  int num_listed_ = 0;
  Pieces pieces_;  // of tiles that are cut
  CutTiles* cut_tiles_;
  int num_cuts_ = 0;
};

}  // namespace fa3::hopper
