// SPDX-License-Identifier: Apache-2.0
// The scheduler of kernels that only decode. Of tiles of 64 rows they compute splits, and the CTA
// that is done with the last split of a tile combines them (combine_last.cuh). Those of 128 rows
// may be whole, and take one CTA longer to load again: of few splits the CTA that opens a tile
// combines (combine_opener.cuh), of more a kernel. Next: load_cp_async.cuh.
#pragma once

#include "engine/hopper/combine/combine_last.cuh"
#include "engine/hopper/combine/combine_opener.cuh"
#include "engine/hopper/forward/producer/kernel_combine.cuh"
#include "engine/hopper/forward/producer/schedule/tile_scheduler.cuh"
#include "engine/hopper/forward/producer/schedule/tile_splits.cuh"
#include "engine/hopper/pipeline/issuer.cuh"

namespace fa3::hopper {

template <Kernel C>
class LastCtaCombine {
 public:
  using Smem = CombineTiles;
  static constexpr bool kTakesWholeTiles = false;

  static __device__ __forceinline__ int range(const ForwardParams&) { return int(blockIdx.x); }

  __device__ __forceinline__ LastCtaCombine(const ForwardParams& params, Smem& smem)
      : params_(params), smem_(smem) {}

  template <class Splits>
  __device__ __forceinline__ void add(const Splits& splits, const TileSplit& tile_split,
                                      const cuda::QueryRows& queries) {
    CombineTile& combine = smem_.tiles[num_tiles_++];
    combine = splits.combine_tile_of_range(tile_split);
    combine.queries = queries;
  }
  // For the consumers, who read it behind the last work tile.
  __device__ __forceinline__ void close(Smem& smem) const {
    smem.count = num_tiles_;
    __syncwarp();
    const int lane = ptx::lane();
    if (lane < num_tiles_) {
      const SplitCounter count(params_.counts, count_of(smem.tiles[lane], {}));
      count.prepare(count.look());
    }
  }

 private:
  const ForwardParams& params_;
  Smem& smem_;
  int num_tiles_ = 0;
};

// The opener, to which consumers see, or the kernel.
class OpenerCombine : public KernelCombine {
 public:
  __device__ __forceinline__ OpenerCombine(const ForwardParams& params, Smem& smem)
      : KernelCombine(params, smem), params_(params) {}

  // An opener waits for CTAs of later ranges, which therefore start first.
  static __device__ __forceinline__ int range(const ForwardParams& params) {
    return int(opener_combines(params) ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  }

  __device__ __forceinline__ void open() const {
    if (!opener_combines(params_)) KernelCombine::open();
  }
  template <class Splits>
  __device__ __forceinline__ void add(const Splits& splits, const TileSplit& tile_split,
                                      const cuda::QueryRows& queries) const {
    if (!opener_combines(params_)) KernelCombine::add(splits, tile_split, queries);
  }

 private:
  const ForwardParams& params_;
};

// Tiles of few sequences, or splits of them, whose consumers find for themselves which blocks they
// visit: a small call waits for its first block.
template <Kernel C>
class StreamKTiles {
  static constexpr bool kLastCtaCombines = C.combine() == CombineKind::kLastCta;
  using Combine = std::conditional_t<kLastCtaCombines, LastCtaCombine<C>, OpenerCombine>;
  using Splits = TileSplits<C, FewSequences, Combine, true>;

 public:
  using Issuer = WarpIssuer;
  static constexpr bool kStartsEarly = true;
  static constexpr bool kFinishesEarly = true;  // splits are short: their last V should not wait
  using Smem = typename Splits::Smem;

  __device__ __forceinline__ StreamKTiles(const ForwardParams& params, Smem& smem)
      : splits_(params, smem) {}

  __device__ __forceinline__ void open() const {
    if constexpr (!kLastCtaCombines) splits_.open();
  }
  __device__ __forceinline__ bool done() const { return splits_.done(); }
  __device__ __forceinline__ bool next(WorkTileOf<C>& work) {
    if constexpr (C.guarded()) {
      for (unsigned char& count : work.fired_guards) count = 0;
    }
    return splits_.next(work);
  }
  __device__ __forceinline__ void draw_next() const {}
  __device__ __forceinline__ void advance() const {}

  static __device__ __forceinline__ bool describes_later() { return false; }
  __device__ __forceinline__ void describe_rest(WorkTileOf<C>&) const {}
  __device__ __forceinline__ void close(Smem& smem) const { splits_.close(smem); }
  // IsLast: perhaps of the CTA's last tile, the only one that it may open without going through
  // with it.
  template <bool IsLast, int Count>
  static __device__ __forceinline__ bool keep_split(const ForwardParams& params,
                                                    const WorkTileOf<C>& work, int first_row,
                                                    float (&output)[Count], RowState& rows) {
    constexpr bool kMayOpen = C.combine() == CombineKind::kOpener;
    if (kMayOpen && IsLast && joins_later_splits<C>(work)) {
      if constexpr (kMayOpen) add_later_splits<C>(params, work, first_row, output, rows);
      return false;
    }
    if (!store_split<C>(params, work, first_row, output, rows)) return false;
    if constexpr (kMayOpen) tell_opener<C>(params, work.place.partial);
    return true;
  }
  static __device__ __forceinline__ void combine(const ForwardParams& params, Smem& smem) {
    if constexpr (kLastCtaCombines) {
      combine_tiles_of_cta<C>(params, smem.combine, int(thread_in_block()) - kWarpgroupSize);
    }
  }

 private:
  Splits splits_;
};

template <Kernel C>
struct SchedulerOf<C, SchedulerKind::kStreamK> {
  using Type = StreamKTiles<C>;
};

}  // namespace fa3::hopper
