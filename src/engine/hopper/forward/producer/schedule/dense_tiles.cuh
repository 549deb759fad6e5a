// SPDX-License-Identifier: Apache-2.0
// The scheduler of tiles that have one length: static or dynamic, by number. Next:
// varlen_tiles.cuh.
#pragma once

#include "engine/hopper/forward/producer/schedule/tile_scheduler.cuh"
#include "engine/hopper/forward/producer/schedule/work_tile_writer.cuh"
#include "engine/hopper/pipeline/issuer.cuh"

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

template <Kernel C, class Issuing = ThreadIssuer>
class DenseTiles : public NoSplits {
 public:
  using Issuer = Issuing;
  static constexpr bool kStartsEarly = false, kFinishesEarly = false;
  struct Smem {};

  __device__ __forceinline__ DenseTiles(const ForwardParams& params, const Smem&)
      : params_(params), writer_(params) {}

  __device__ __forceinline__ void open() const {}
  __device__ __forceinline__ bool done() const { return number() >= params_.order.num_tiles(); }
  __device__ __forceinline__ bool next(WorkTileOf<C>& work) const {
    const int rows = params_.seqlen_q;
    const TileIndex index = tile_of(number());
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
  static __device__ __forceinline__ void combine(const ForwardParams&, Smem&) {}

 protected:
  __device__ __forceinline__ int number() const { return number_.get(); }
  __device__ __forceinline__ void write(WorkTileOf<C>& work, int m_block,
                                        const cuda::QueryRows& queries, const KeyRows& keys) const {
    writer_.write_tile(work, m_block, queries, keys);
  }

  const ForwardParams& params_;

 private:
  __device__ __forceinline__ TileIndex tile_of(int number) const {
#ifdef FA3_SCORE_FUNCTION
    return params_.score.together.tile(params_.order.tile(number));
#else
    return params_.order.tile(number);
#endif
  }

  const WorkTileWriter<C> writer_;
  TileNumber<Issuer> number_;
};

template <Kernel C>
struct SchedulerOf<C, SchedulerKind::kDense> {
  using Type = DenseTiles<C>;
};

}  // namespace fa3::hopper
