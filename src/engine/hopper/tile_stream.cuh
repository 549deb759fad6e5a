// SPDX-License-Identifier: Apache-2.0
// The tiles of one thread block, one after the other, each as the record that the consumers get. Tiles
// of unequal length are drawn from a counter, when a thread block is free; others are dealt in turn,
// which needs no counter to be cleared; tiles that are cut come in pieces. Next: load_tma.cuh.
#pragma once

#include "engine/hopper/forward_params.h"
#include "engine/hopper/piece/sequence_window.cuh"
#include "engine/hopper/piece/work_item.cuh"

namespace fa3::hopper {

struct NoPieces {};

template <ForwardConfig C>
class TileStream {
  using Edge = decltype(ItemOf<C>::Blocks::edge);

 public:
  __device__ __forceinline__ TileStream(const ForwardParams& params, SequenceSmem* sequences)
      : params_(params), tile_(int(blockIdx.x)), pieces_(pieces_of(params, sequences)) {
    if (listed()) num_listed_ = *params.num_entries * params.order.num_packs;
    if (cut() && !params.split.told_by_tile) params.cuts[blockIdx.x].num_pieces = 0;
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

  // Of tiles that are cut: the next piece, as much of its record as tells where its keys lie. False:
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

  __device__ __forceinline__ bool cut() const {
    return C.cuts() && params_.split.block_n > 0;
  }

 private:
  using Pieces = std::conditional_t<C.cuts(), PieceStream<SequenceWindow>, NoPieces>;

  // The split as the compiler may know it.
  static __device__ __forceinline__ KeySplit split_of(const ForwardParams& params) {
    KeySplit split = params.split;
    split.block_n = C.block_n;
    split.sequences.block_m = C.block_m;
    return split;
  }
  static __device__ __forceinline__ Pieces pieces_of(const ForwardParams& params,
                                                     SequenceSmem* sequences) {
    if constexpr (C.cuts()) {
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
  __device__ __forceinline__ bool listed() const {
    return C.general() && params_.sequences;
  }
  __device__ __forceinline__ bool paged() const {
    return C.general() && params_.paged.page_size > 0;
  }

  // Dense kernels know nothing of chunks.
  __device__ __forceinline__ MaskRuleOf<int> mask() const {
    return C.general() ? params_.mask : MaskRuleOf<int>{params_.mask.left, params_.mask.right};
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

  // Of the warpgroup that has the tile's rows from `first_row` on.
  __device__ __forceinline__ typename ItemOf<C>::Blocks blocks_of(int first_row,
                                                                  const cuda::QueryRows& queries,
                                                                  int seqlen_k, int first_key,
                                                                  int most_blocks) const {
    const HeadPack pack = params_.output.pack;
    const int seqlen_q = queries.used;
    const int q_begin = pack.query(first_row);
    const int past_end = pack.query(first_row + kRowsPerWarpgroup);
    if (q_begin >= queries.count) return {};
    if (C.general() && q_begin >= seqlen_q) return {.count = 1, .edge = Edge::of_nothing()};
    const int q_end = past_end < seqlen_q ? past_end : seqlen_q;
    const auto blocks_under = [&](const MaskRuleOf<int>& rule) {
      const auto range = block_range(rule, q_begin, q_end, seqlen_q, seqlen_k).from(first_key);
      const auto edge = Edge::of(rule, q_begin, q_end, seqlen_q, seqlen_k).from(first_key);
      return C.cuts() ? row_blocks_of_piece(range, edge, C.block_n, most_blocks)
                      : row_blocks(range, edge, C.block_n);
    };
    auto blocks = C.cuts() && hides_right_only(mask()) ? blocks_under({.right = mask().right})
                                                       : blocks_under(mask());
    // Unless they are clipped, rows past the end hold anything: only ordinary steps look at no row but
    // their own.
    if ((listed() || cut()) && !params_.q_is_clipped && past_end > seqlen_q)
      blocks.ordinary_from = 0;
    // Lost scores are computed again 16 bytes of a row at a time, and not by every kernel from pages.
    if ((paged() && !C.redoes_pages()) || (C.general() && params_.q.columns % kCopyColumns != 0))
      blocks.ordinary_from = 0;
    return blocks;
  }

  const ForwardParams& params_;
  int tile_;
  int next_tile_ = 0;
  int num_listed_ = 0;
  Pieces pieces_;  // of tiles that are cut
};

}  // namespace fa3::hopper
