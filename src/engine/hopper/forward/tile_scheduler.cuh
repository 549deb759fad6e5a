// SPDX-License-Identifier: Apache-2.0
// The tiles of one CTA, one after the other, each as the work tile that the consumers get. Tiles
// of unequal length are drawn from a counter, when a CTA is free; others are dealt in turn,
// which needs no counter to be cleared; tiles that are split, or found by number, come as splits.
// Next: load_tma.cuh.
#pragma once

#include "engine/hopper/forward/work_tile_blocks.cuh"
#include "engine/hopper/scheduler/sequence_window.cuh"

namespace fa3::hopper {

struct NoSplits {};

template <ForwardConfig C>
class TileScheduler : private WorkTileBlocks<C> {
  using WorkTileBlocks<C>::blocks_of, WorkTileBlocks<C>::has_varlen_metadata,
      WorkTileBlocks<C>::mask, WorkTileBlocks<C>::paged, WorkTileBlocks<C>::params_;

 public:
  using WorkTileBlocks<C>::is_split;

  __device__ __forceinline__ TileScheduler(const ForwardParams& params, SequenceSmem* sequences,
                                           CombineTiles* combine_tiles)
      : WorkTileBlocks<C>(params),
        tile_(int(blockIdx.x)),
        splits_(splits_of(params, sequences)),
        combine_tiles_(combine_tiles) {
    if (has_varlen_metadata()) num_metadata_tiles_ = *params.num_entries * params.order.num_packs;
    if (!C.always_splits() && is_split() && !params.schedule.combine_by_tile) {
      params.combines[blockIdx.x].num_splits = 0;
    }
  }

  __device__ __forceinline__ bool done() const {
    if constexpr (C.can_split()) {
      if (is_split()) return splits_.done();
    }
    return tile_ >= (has_varlen_metadata() ? num_metadata_tiles_ : params_.order.num_tiles());
  }

  // Settles which tile is next. The later it is asked, the better the end of the work evens out;
  // the answer takes about a microsecond.
  __device__ __forceinline__ void draw_next() {
    if (is_split()) return;
    const int stride = int(gridDim.x);
    next_tile_ = params_.tile_counter ? draw_tile() + stride : tile_ + stride;
  }
  __device__ __forceinline__ void advance() { tile_ = next_tile_; }

  // Where they come as splits: the next one, as much of its work tile as tells where its keys lie.
  // False: there is no work in it.
  __device__ __forceinline__ bool next_split(WorkTileOf<C>& item) {
    SequenceTiles s;
    TileSplit tile_split;
    const bool exists = splits_.next(s, tile_split);
    if (exists) {
      s.queries.pack = tile_split.pack;
      item.num_blocks = tile_split.blocks.count;
      item.first_row = tile_split.m_block * C.block_m;
      item.queries = s.queries;
      item.keys = s.keys;
      item.first_key = tile_split.blocks.first * C.block_n;
      item.place.partial = tile_split.partial;
      set_sequence(item, s.number);
    }
    if constexpr (C.always_splits()) {
      if (exists && tile_split.partial != TileSplit::kNotSplit) {
        CombineTile& combine = combine_tiles_->tiles[num_combines_++];
        combine = splits_.combine_tile_of_range(tile_split);
        combine.queries = s.queries;
      }
      return exists;
    }
    const int at = splits_.combine_index();
    if (at >= 0) {
      CombineTile combine = splits_.combine_tile(tile_split);
      combine.queries = s.queries;
      params_.combines[at] = combine;
    }
    return exists;
  }

  // The rest of its work tile.
  __device__ __forceinline__ void describe_split(WorkTileOf<C>& item) const {
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      write(item.mine[w], blocks_of(item.first_row + w * kRowsPerWarpgroup, item.queries,
                                    item.keys.count, item.first_key, item.num_blocks));
    }
    for (unsigned char& corrections : item.corrections) corrections = 0;
  }

  // Writes the work tile of a whole tile, where it is read: the producer has no registers to spare
  // for it.
  __device__ __forceinline__ void describe(WorkTileOf<C>& item) {
    if constexpr (C.general()) item.place.partial = TileSplit::kNotSplit;
    if (has_varlen_metadata()) {
      const int entry = tile_ / params_.order.num_packs;
      SequenceTiles s = params_.sequences[entry];
      const TileIndex index = s.order.tile(tile_ - s.first_entry * params_.order.num_packs);
      s.queries.pack = index.pack;
      set_sequence(item, s.number);
      describe(item, index.m_block, s.queries, s.keys);
    } else {
      const int rows = params_.seqlen_q;
      const TileIndex index = params_.order.tile(tile_);
      set_sequence(item, index.batch);
      describe(item, index.m_block, {index.batch, index.pack, 0, rows, rows},
               {index.batch, 0, params_.seqlen_k});
    }
  }

  // Of those that this CTA has splits of.
  __device__ __forceinline__ int num_combines() const {
    return num_combines_;
  }

 private:
  using Sequences = std::conditional_t<C.always_splits(), FewSequences, SequenceWindow>;
  using Pieces = std::conditional_t<C.can_split(), SplitIterator<Sequences>, NoSplits>;

  // The split as the compiler may know it.
  static __device__ __forceinline__ SplitKvSchedule schedule_of(const ForwardParams& params) {
    SplitKvSchedule schedule = C.always_splits() ? params.schedule.for_decoding() : params.schedule;
    schedule.block_n = C.block_n;
    schedule.sequences.block_m = C.block_m;
    return schedule;
  }
  static __device__ __forceinline__ Pieces splits_of(const ForwardParams& params,
                                                     SequenceSmem* sequences) {
    if constexpr (C.always_splits()) {
      const SplitKvSchedule schedule = schedule_of(params);
      return Pieces(schedule, FewSequences(schedule), int(blockIdx.x), int(gridDim.x));
    } else if constexpr (C.can_split()) {
      const SplitKvSchedule schedule = schedule_of(params);
      return Pieces(schedule, SequenceWindow(schedule, sequences->entries), int(blockIdx.x),
                    int(gridDim.x));
    } else {
      return {};
    }
  }

  __device__ __forceinline__ int draw_tile() const {
    if constexpr (C.loads_by_warp()) {
      const int ticket = ptx::lane() == 0 ? atomicAdd(params_.tile_counter, 1) : 0;
      return __shfl_sync(0xffffffff, ticket, 0);
    } else {
      return atomicAdd(params_.tile_counter, 1);
    }
  }
  __device__ __forceinline__ void set_sequence(WorkTileOf<C>& item, int number) const {
    if constexpr (C.dequantizes()) item.place.sequence = number;
    // Rows that no sequence owns borrow the first one's scales, which change nothing.
    if constexpr (C.e4m3 && C.general()) {
      item.place.sequence = number < params_.e4m3.sequences ? number : 0;
    }
  }

  // Both ends of a row's keys grow with the row: the first row's begin and the last one's end are
  // the tile's.
  __device__ __forceinline__ void describe(WorkTileOf<C>& item, int m_block,
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
      const typename WorkTileOf<C>::Blocks blocks =
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

  // A window's fields one by one: stores of four at once would take registers that the producer
  // lacks.
  using Blocks = typename WorkTileOf<C>::Blocks;
  __device__ __forceinline__ void write(Blocks& to, const Blocks& blocks) const {
    if constexpr (C.general()) {
      to.count = blocks.count;
      to.masked_from = blocks.masked_from;
      to.online_from = blocks.online_from;
      to.edge = blocks.edge;
    } else {
      to = blocks;
    }
  }

  int tile_;
  int next_tile_ = 0;
  int num_metadata_tiles_ = 0;
  Pieces splits_;  // of tiles that are split
  CombineTiles* combine_tiles_;
  int num_combines_ = 0;
};

}  // namespace fa3::hopper
