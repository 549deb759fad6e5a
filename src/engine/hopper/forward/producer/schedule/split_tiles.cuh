// SPDX-License-Identifier: Apache-2.0
// The scheduler of tiles that the launch may split. A kernel of its own combines their splits
// (combine_kernel.cu), by a list that is left for it. Next: stream_k_tiles.cuh.
#pragma once

#include "engine/hopper/forward/producer/kernel_combine.cuh"
#include "engine/hopper/forward/producer/schedule/tile_splits.cuh"
#include "engine/hopper/forward/producer/schedule/varlen_tiles.cuh"

namespace fa3::hopper {

// What is split is decided by the launch: the choice between the two is made here alone.
template <Kernel C>
class SplitTiles {
  using Schedule = std::conditional_t<C.pairs_tiles(), PairedKvSchedule, SplitKvSchedule>;
  using Splits = TileSplits<C, SequenceWindow<Schedule>, KernelCombine, false>;

 public:
  using Issuer = WarpIssuer;
  static constexpr bool kStartsEarly = true;
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
  template <bool IsLast, int Count>
  static __device__ __forceinline__ bool keep_split(const ForwardParams& params,
                                                    const WorkTileOf<C>& work, int first_row,
                                                    float (&output)[Count], const RowState& rows) {
    return store_split<C>(params, work, first_row, output, rows);
  }
  static __device__ __forceinline__ void combine(const ForwardParams&, Smem&) {}

 private:
  __device__ __forceinline__ bool is_split() const { return params_.schedule.is_active(); }

  const ForwardParams& params_;
  VarlenTiles<C, Issuer> whole_;
  Splits splits_;
  const WorkTileWriter<C> writer_;
};

template <Kernel C>
struct SchedulerOf<C, SchedulerKind::kSplit> {
  using Type = SplitTiles<C>;
};

}  // namespace fa3::hopper
