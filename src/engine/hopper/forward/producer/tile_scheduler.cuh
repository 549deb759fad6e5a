// SPDX-License-Identifier: Apache-2.0
// Which tiles a CTA computes, one after the other, each as the work tile that the consumers get.
// A scheduler of the forward kernel is one of four types:
//   DenseTiles   one length for all sequences: tiles by number (scheduler/tile_order.h)
//   VarlenTiles  the same, or by the list that varlen_metadata.cu has made
//   SplitTiles   parts of tiles (scheduler/split_kv.h), or, where nothing is split, VarlenTiles
//   StreamKTiles parts of tiles alone
// The producer asks next() for a work tile, announces it at once, or, if describes_later() says so,
// after describe_rest(), and asks draw_next() while the tile's last blocks are loaded.
// Next: producer.cuh.
#pragma once

#include "engine/hopper/forward/producer/combine_splits.cuh"
#include "engine/hopper/forward/producer/work_tile_blocks.cuh"
#include "engine/hopper/pipeline/issuer.cuh"
#include "engine/hopper/scheduler/sequence_window.cuh"

namespace fa3::hopper {

// The number of the CTA's tile. Tiles of unequal length are drawn from a counter when a CTA is
// free (dynamic); others are dealt in turn (static), which needs no counter to be cleared.
template <class Issuer>
class TileNumber {
 public:
  __device__ __forceinline__ TileNumber() : tile_(int(blockIdx.x)) {}

  __device__ __forceinline__ int get() const { return tile_; }
  // Settles which tile is next. The later, the better the end of the work evens out; the answer
  // takes about a microsecond.
  __device__ __forceinline__ void draw_next(int* counter) {
    const int stride = int(gridDim.x);
    next_ = counter ? Issuer::draw(counter) + stride : tile_ + stride;
  }
  __device__ __forceinline__ void advance() { tile_ = next_; }

 private:
  int tile_;
  int next_ = 0;
};

// Writes work tiles in shared memory, where they are read: the producer has no registers to spare
// for them.
template <ForwardConfig C>
class WorkTileWriter : private WorkTileBlocks<C> {
  using WorkTileBlocks<C>::blocks_of, WorkTileBlocks<C>::mask, WorkTileBlocks<C>::params_,
      WorkTileBlocks<C>::paged;

 public:
  using WorkTileBlocks<C>::WorkTileBlocks;

  // A whole tile. Both ends of a row's keys grow with the row: the first row's begin and the last
  // one's end are the tile's.
  __device__ __forceinline__ void write_tile(WorkTileOf<C>& work, int m_block,
                                             const cuda::QueryRows& queries,
                                             const KeyRows& keys) const {
    const int first_row = m_block * C.block_m;
    int first_key =
        mask().keys_of(params_.output.pack.query(first_row), queries.used, keys.count).begin;
    // Boxes do not cross pages then, nor blocks the ranges of keys that share a scale.
    if (C.e4m3 && first_key > keys.count) first_key = keys.count;
    if (paged() || C.e4m3) first_key -= first_key % C.block_n;
    int num_blocks = 0;
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      const typename WorkTileOf<C>::Blocks blocks =
          blocks_of(first_row + w * kRowsPerWarpgroup, queries, keys.count, first_key, kAllBlocks);
      write(work.mine[w], blocks);
      if (blocks.count > num_blocks) num_blocks = blocks.count;
    }
    work.num_blocks = num_blocks;
    work.first_row = first_row;
    work.queries = queries;
    work.keys = keys;
    work.first_key = first_key;
    for (unsigned char& count : work.fired_guards) count = 0;
  }

  // What the consumers need of a split beyond write_split().
  __device__ __forceinline__ void write_blocks(WorkTileOf<C>& work) const {
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      write(work.mine[w], blocks_of(work.first_row + w * kRowsPerWarpgroup, work.queries,
                                    work.keys.count, work.first_key, work.num_blocks));
    }
    for (unsigned char& count : work.fired_guards) count = 0;
  }

 private:
  // A window's fields one by one: stores of four at once would take registers that the producer
  // lacks.
  static __device__ __forceinline__ void write(RowBlocks<KeyWindow>& to,
                                               const RowBlocks<KeyWindow>& blocks) {
    to.count = blocks.count;
    to.masked_from = blocks.masked_from;
    to.online_from = blocks.online_from;
    to.edge = blocks.edge;
  }
  static __device__ __forceinline__ void write(RowBlocks<RightEdge>& to,
                                               const RowBlocks<RightEdge>& blocks) {
    to = blocks;
  }
};

template <ForwardConfig C, class Issuing = ThreadIssuer>
class DenseTiles {
 public:
  using Issuer = Issuing;
  static constexpr bool kFinishesEarly = false;
  struct Smem {};

  __device__ __forceinline__ DenseTiles(const ForwardParams& params, const Smem&)
      : params_(params), writer_(params) {}

  __device__ __forceinline__ void open() const {}
  __device__ __forceinline__ bool done() const { return number() >= params_.order.num_tiles(); }
  __device__ __forceinline__ bool next(WorkTileOf<C>& work) const {
    const int rows = params_.seqlen_q;
    const TileIndex index = params_.order.tile(number());
    work.place.set_sequence(index.batch, params_.e4m3.sequences);
    write(work, index.m_block, {index.batch, index.pack, 0, rows, rows},
          {index.batch, 0, params_.seqlen_k});
    return true;
  }
  __device__ __forceinline__ void draw_next() { number_.draw_next(params_.tile_counter); }
  __device__ __forceinline__ void advance() { number_.advance(); }

  static __device__ __forceinline__ bool describes_later() { return false; }
  __device__ __forceinline__ void describe_rest(WorkTileOf<C>&) const {}
  __device__ __forceinline__ void close(const Smem&) const {}

 protected:
  __device__ __forceinline__ int number() const { return number_.get(); }
  __device__ __forceinline__ void write(WorkTileOf<C>& work, int m_block,
                                        const cuda::QueryRows& queries, const KeyRows& keys) const {
    writer_.write_tile(work, m_block, queries, keys);
  }

  const ForwardParams& params_;

 private:
  const WorkTileWriter<C> writer_;
  TileNumber<Issuer> number_;
};

template <ForwardConfig C, class Issuing = ThreadIssuer>
class VarlenTiles : public DenseTiles<C, Issuing> {
  using Dense = DenseTiles<C, Issuing>;
  using Dense::number, Dense::params_;

 public:
  using Dense::Dense;

  __device__ __forceinline__ void open() {
    if (has_metadata()) num_metadata_tiles_ = *params_.num_entries * params_.order.num_packs;
  }

  __device__ __forceinline__ bool done() const {
    return number() >= (has_metadata() ? num_metadata_tiles_ : params_.order.num_tiles());
  }
  __device__ __forceinline__ bool next(WorkTileOf<C>& work) const {
    work.place.partial = TileSplit::kNotSplit;
    if (has_metadata()) {
      const int entry = number() / params_.order.num_packs;
      SequenceTiles s = params_.sequences[entry];
      const TileIndex index = s.order.tile(number() - s.first_entry * params_.order.num_packs);
      s.queries.pack = index.pack;
      work.place.set_sequence(s.number, params_.e4m3.sequences);
      this->write(work, index.m_block, s.queries, s.keys);
    } else {
      Dense::next(work);
    }
    return true;
  }

 private:
  __device__ __forceinline__ bool has_metadata() const { return params_.sequences; }

  int num_metadata_tiles_ = 0;
};

// The splits of a CTA. Sequences: the warp's view of them (sequence_window.cuh). Combine: who
// combines them (combine_splits.cuh). IsDecoding: the launch is as SplitKvSchedule::for_decoding()
// says.
template <ForwardConfig C, class Sequences, class Combine, bool IsDecoding>
class TileSplits {
 public:
  struct Smem {
    SequenceSmem sequences;
    [[no_unique_address]] typename Combine::Smem combine;
  };

  __device__ __forceinline__ TileSplits(const ForwardParams& params, Smem& smem)
      : params_(params),
        combine_(params, smem.combine),
        splits_(splits_of(params, smem.sequences)) {}

  __device__ __forceinline__ void open() const { combine_.open(); }
  __device__ __forceinline__ bool done() const { return splits_.done(); }

  // As much of the next split's work tile as says where its keys lie. False: there is no work in
  // it.
  __device__ __forceinline__ bool next(WorkTileOf<C>& work) {
    SequenceTiles s;
    TileSplit tile_split;
    const bool exists = splits_.next(s, tile_split);
    if (exists) {
      s.queries.pack = tile_split.pack;
      work.num_blocks = tile_split.blocks.count;
      work.first_row = tile_split.m_block * C.block_m;
      work.queries = s.queries;
      work.keys = s.keys;
      work.first_key = tile_split.blocks.first * C.block_n;
      work.place.partial = tile_split.partial;
      work.place.set_sequence(s.number, params_.e4m3.sequences);
    }
    if (Combine::kTakesWholeTiles || (exists && tile_split.partial != TileSplit::kNotSplit)) {
      combine_.add(splits_, tile_split, s.queries);
    }
    return exists;
  }

  __device__ __forceinline__ void close(Smem& smem) const { combine_.close(smem.combine); }

 private:
  // With what the compiler may know of the schedule.
  static __device__ __forceinline__ SplitIterator<Sequences> splits_of(const ForwardParams& params,
                                                                       SequenceSmem& sequences) {
    SplitKvSchedule schedule = IsDecoding ? params.schedule.for_decoding() : params.schedule;
    schedule.block_n = C.block_n;
    schedule.sequences.block_m = C.block_m;
    return {schedule, Sequences(schedule, sequences.entries), int(blockIdx.x), int(gridDim.x)};
  }

  const ForwardParams& params_;
  Combine combine_;
  SplitIterator<Sequences> splits_;
};

// What is split is decided by the launch: the choice between the two is made here alone.
template <ForwardConfig C>
class SplitTiles {
  using Splits = TileSplits<C, SequenceWindow, KernelCombine, false>;

 public:
  using Issuer = WarpIssuer;
  static constexpr bool kFinishesEarly = true;  // splits are short: their last V should not wait
  using Smem = typename Splits::Smem;

  __device__ __forceinline__ SplitTiles(const ForwardParams& params, Smem& smem)
      : params_(params), whole_(params, {}), splits_(params, smem), writer_(params) {}

  __device__ __forceinline__ void open() {
    whole_.open();
    if (is_split()) splits_.open();
  }

  __device__ __forceinline__ bool done() const {
    return is_split() ? splits_.done() : whole_.done();
  }
  __device__ __forceinline__ bool next(WorkTileOf<C>& work) {
    const bool split = is_split();
    if (split && !splits_.next(work)) return false;
    if (!split) whole_.next(work);
    __syncwarp();  // all lanes have written the work tile, and read it now
    return true;
  }
  __device__ __forceinline__ void draw_next() {
    if (!is_split()) whole_.draw_next();
  }
  __device__ __forceinline__ void advance() { whole_.advance(); }

  // A split is described while its first K is on its way.
  __device__ __forceinline__ bool describes_later() const { return is_split(); }
  __device__ __forceinline__ void describe_rest(WorkTileOf<C>& work) const {
    writer_.write_blocks(work);
  }
  __device__ __forceinline__ void close(const Smem&) const {}

 private:
  __device__ __forceinline__ bool is_split() const { return params_.schedule.is_active(); }

  const ForwardParams& params_;
  VarlenTiles<C, Issuer> whole_;
  Splits splits_;
  const WorkTileWriter<C> writer_;
};

// Splits of few sequences' tiles, whose consumers find for themselves which blocks they visit: a
// small call waits for its first split.
template <ForwardConfig C>
class StreamKTiles {
  using Splits = TileSplits<C, FewSequences, LastCtaCombine<C>, true>;

 public:
  using Issuer = WarpIssuer;
  static constexpr bool kFinishesEarly = true;  // splits are short: their last V should not wait
  using Smem = typename Splits::Smem;

  __device__ __forceinline__ StreamKTiles(const ForwardParams& params, Smem& smem)
      : splits_(params, smem) {}

  __device__ __forceinline__ void open() const {}
  __device__ __forceinline__ bool done() const { return splits_.done(); }
  __device__ __forceinline__ bool next(WorkTileOf<C>& work) { return splits_.next(work); }
  __device__ __forceinline__ void draw_next() const {}
  __device__ __forceinline__ void advance() const {}

  static __device__ __forceinline__ bool describes_later() { return false; }
  __device__ __forceinline__ void describe_rest(WorkTileOf<C>&) const {}
  __device__ __forceinline__ void close(Smem& smem) const { splits_.close(smem); }

 private:
  Splits splits_;
};

// ---- A configuration's scheduler ----

template <ForwardConfig C, SchedulerKind = C.scheduler()>
struct SchedulerOf;
template <ForwardConfig C>
struct SchedulerOf<C, SchedulerKind::kDense> {
  using Type = DenseTiles<C>;
};
template <ForwardConfig C>
struct SchedulerOf<C, SchedulerKind::kVarlen> {
  using Type = VarlenTiles<C>;
};
template <ForwardConfig C>
struct SchedulerOf<C, SchedulerKind::kSplit> {
  using Type = SplitTiles<C>;
};
template <ForwardConfig C>
struct SchedulerOf<C, SchedulerKind::kStreamK> {
  using Type = StreamKTiles<C>;
};
template <ForwardConfig C>
using TileScheduler = typename SchedulerOf<C>::Type;

}  // namespace fa3::hopper
