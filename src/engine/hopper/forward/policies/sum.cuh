// SPDX-License-Identifier: Apache-2.0
// The policy of sums, SumOf<C>: how O += P V adds up, and how a finished tile leaves. Kept in
// registers from the tile's first block to its last, here. The source of a kernel includes the
// others:
//   sum_continued.cuh  rows that go on from a result over other keys
//   sum_promoted.cuh   e4m3 products, in two levels
#pragma once

#include "engine/cuda/softmax/epilogue.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/policies/outputs.cuh"
#include "engine/hopper/forward/policies/scores.cuh"
#include "engine/hopper/forward/policies/weights.cuh"
#include "engine/hopper/forward/producer/kv_loader.cuh"
#include "engine/hopper/forward/producer/schedule/tile_scheduler.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/wgmma.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

// Where P begin.
template <Kernel C>
inline constexpr int kTopLog2 = int(ScoresOf<C>::kTopLog2);

// `c` is the Consumer, `r` the ThreadTile.
template <Kernel C>
class KeptSum {
 public:
  struct Smem {};

  // A part of O ends in this block's step, or behind it: never.
  static __device__ __forceinline__ constexpr bool promotes_under(int) { return false; }
  template <class Consumer, class Tile>
  __device__ __forceinline__ void promote(const Consumer&, Tile&) {}

  // A tile starts. Its first product assigns O where registers allow it: no zeros to write, some
  // 100 clocks.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void start(const Consumer&, Tile& r) {
    if (short_tile_change(C)) {
      starts_ = true;
    } else {
#pragma unroll
      for (float& o : r.output) o = 0.0f;
    }
  }

  // Elements [Begin, End) of the thread's P become part of the next product's operand.
  template <int Begin, int End, class Tile>
  __device__ __forceinline__ void pack(Tile& r) const {
    const float(&p)[Tile::kScores] = r.scores;
#pragma unroll
    for (int i = Begin / 2; i < End / 2; ++i) {
      r.p[i / 4][i % 4] = pack_pair<C.types().product>(p[2 * i], p[2 * i + 1]);
    }
  }
  template <class Tile>
  __device__ __forceinline__ void issue(Tile& r, uint32_t v) {
    tile::issue_ab<C.types().product, C.tiles_in_smem().v>(r.output, r.p, v, !starts_);
    ptx::wgmma_commit_group();
    starts_ = false;
  }

  // O and its sums move to the reference that the step has left. Where steps are short, most often
  // nothing moves: then a vote is all.
  template <class Tile>
  __device__ __forceinline__ void rescale(Tile& r, const StepResult& step) {
    if (short_steps(C) &&
        !__any_sync(0xffffffff, step.rescale[0] != 1.0f || step.rescale[1] != 1.0f))
      return;
    r.rescale_output(step.rescale);
  }

  // Algorithm 2, line 20, of the tile before the current one. IsLast: the current one may be the
  // end of all tiles.
  template <bool IsLast, class Consumer, class Tile>
  __device__ __forceinline__ void finish(const Consumer& c, Tile& r, const RowState& rows) const {
    const uint32_t stage = c.stages.previous_work_tile();
    const WorkTileOf<C>& work = c.smem.work_tiles[stage];
    store<IsLast>(c.params, work, c.first_row_of(work), r,
                  c.scores.with_references(c, stage, rows));
    c.stages.release_work_tile(stage);
  }
  static __device__ __forceinline__ void close() {}

 private:
  static constexpr int kNumbers = C.shape.head_dim_v / 2;

  // A warp's rows, the first of them `first_row` of the sequence.
  template <bool IsLast, class Tile>
  static __device__ __forceinline__ void store(const ForwardParams& params,
                                               const WorkTileOf<C>& work, int first_row, Tile& r,
                                               RowState rows) {
    KvLoaderOf<C>::restore(work, r.output);
    if (TileScheduler<C>::template keep_split<IsLast>(params, work, first_row, r.output, rows))
      return;
    constexpr bool kGeneral = C.general() || C.is_stream_k();
    constexpr bool kAnyRows = stores_any_rows(C);
    cuda::store_rows<C.element, kTopLog2<C>, kGeneral, kAnyRows>(
        params.output, work.queries, first_row, r.output, rows,
        GateOf<C>::values(params, work.queries, first_row, r, WeightsOf<C>::values(params)));
  }

  bool starts_ = false;  // the next product is the tile's first: it assigns O
};

template <Kernel C>
struct SumOf : KeptSum<C> {
  static_assert(!C.e4m3() && !C.continued(), "the source of this kernel does not include its sum");
};

}  // namespace fa3::hopper
