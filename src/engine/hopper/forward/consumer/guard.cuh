// SPDX-License-Identifier: Apache-2.0
// The softmax of a block by a consumer warpgroup, and what becomes of a block whose P is of no use:
// the guard of a guarded step has fired, or references are huge. Rare code, beside the online step.
// Next: cuda/softmax/softmax.cuh, consumer.cuh.
#pragma once

#include "engine/cuda/softmax/recompute_score.cuh"
#include "engine/hopper/forward/consumer/tile_state.cuh"

namespace fa3::hopper {

// The loop of a kernel.
template <Kernel C>
struct LoopOf;

template <Kernel C>
__device__ __forceinline__ void go_online(Consumer<C>& c) {
  c.tile.set_mode(TileMode::kOnline);
}

// A score function may hide all of a row's first block: then the row has no reference, and a
// guarded step would lose its scores. Such a warp goes on by online steps.
template <Kernel C>
__device__ __forceinline__ void look_for_references(Consumer<C>& c, const RowState& rows) {
  const bool lacks_one = rows.ref[0] == -kInfinity || rows.ref[1] == -kInfinity;
  if (__any_sync(0xffffffff, lacks_one)) go_online(c);
}

// Whether rare code takes blocks with huge scores. Otherwise online steps take them as they come.
template <Kernel C>
inline constexpr bool kRecomputesHugeScores = C.guarded() && ScoresOf<C>::kRebases;

// The online step of a block, behind its mask. Returns true if scores are too large for it: nothing
// has changed then, and recompute_block() takes the block. Scores that are computed again round
// otherwise, so a reference that these had set could be above them all.
template <Kernel C>
__device__ __forceinline__ bool weigh_online(Consumer<C>& c, ThreadTile<C>& r, bool starts_tile,
                                             ScoreStep<C>& result) {
  if (starts_tile) r.rows = RowState{};
  if (c.scores.live_rows() == 0) {
    result = {};
    return false;
  }
  if (!LogitsOf<C>::kHides && c.is_masked()) c.weights.hide(c, r);
  if (c.scores.live_rows() == 1) {
    online_step<1>(r.scores, r.rows, c.scores, result);
    return false;
  }
  const RowState before = r.rows;
  if (online_step<kRowsPerThread, !kRecomputesHugeScores<C>>(r.scores, r.rows, c.scores, result)) {
    r.rows = before;
    result = {};
    return true;
  }
  if (ScoresOf<C>::kMayHide && C.guarded() && starts_tile) look_for_references(c, r.rows);
  return false;
}

// P becomes an operand, without what is dropped of it. The sums of P have it all.
template <int Begin, Kernel C>
__device__ __forceinline__ void pack(Consumer<C>& c, ThreadTile<C>& r) {
  c.weights.draw_late(c, r);
  c.sum.template pack<Begin, ThreadTile<C>::kScores>(r);
  c.weights.drop(c, r);
}

// ---- Where P is of no use ----

// Its scores are gone too: their block counts for nothing until recompute_block(). `seen`: before
// it.
template <Kernel C>
__device__ __forceinline__ void lose_scores(Consumer<C>& c, ThreadTile<C>& r,
                                            const SeenLogits<C>& seen) {
  static_cast<SeenLogits<C>&>(r) = seen;
  c.tile.lose_scores();
}

// After this many fired guards in a tile a warp takes the rest of it by online steps: one costs
// less than a fired guard. Measured: docs/lab/hopper.md.
inline constexpr int kMostGuardFires = 3;
inline constexpr int kMostCounted = 255;

// Counts a fired guard. With headroom a guard fires seldom, and costs no more than two online
// steps: it is too often if it fires in more than half of the blocks that were visited.
template <Kernel C>
__device__ __forceinline__ bool fires_too_often(const Consumer<C>& c) {
  WorkTileOf<C>& work = c.work_tile();
  unsigned char& fired = work.fired_guards[c.warp()];
  if (ptx::lane() == 0 && fired < kMostCounted) ++fired;
  __syncwarp();
  const int count = fired;
  const int visited = work.mine[c.warpgroup].count - c.tile.block();
  return count >= kMostGuardFires && 2 * count > visited;
}

// The guard has fired in this warp: brings its P back into range, and O with it, or gives up the
// block's scores.
template <Kernel C>
__device__ __forceinline__ void after_guard_fired(Consumer<C>& c, ThreadTile<C>& r,
                                                  ScoreStep<C>& result, const SeenLogits<C>& seen) {
  if constexpr (C.has_headroom()) {
    if (fires_too_often(c)) go_online(c);
  } else {
    WorkTileOf<C>& work = c.work_tile();
    const unsigned warp = c.warp();
    if (ptx::lane() == 0) ++work.fired_guards[warp];
    __syncwarp();
    if (work.fired_guards[warp] >= kMostGuardFires) go_online(c);
  }
  if (can_rescale_after_guard(result)) {
    rescale_after_guard<ScoresOf<C>>(r.scores, r.rows, result);
    c.sum.rescale(r, result);
    // The block's P have been multiplied twice where one factor is too small for a float.
    static_cast<SeenLogits<C>&>(r) = seen;
    LogitsOf<C>::rescale(r, result.rescale);
    LogitsOf<C>::see_weights(r);
    c.sum.template pack<0, early_p(C)>(r);
  } else {
    result.block_sum[0] = result.block_sum[1] = 0.0f;
    lose_scores(c, r, seen);
  }
}

// The scores of a consumer warp's rows and one block of keys.
template <Kernel C>
__device__ __forceinline__ void recompute_scores(float (&scores)[C.shape.block_n / 2],
                                                 const ForwardParams& params,
                                                 const WorkTileOf<C>& work, int first_row,
                                                 int block) {
  int first_key = first_key_of(work) + key_in_tile(work, block * C.shape.block_n);
  const int num_keys = work.keys.count - first_key;
  if (C.general() || !C.block_mask()) first_key += work.keys.begin;
  const PagedKeys& paged = params.paged;
  const bool in_pages = recomputes_pages(C) && has_pages<C>(params);
  recompute_score<C.types().product, C.shape.head_dim, stores_any_rows(C) && !C.e4m3()>(
      scores, params.q, work.queries.batch,
      LaneRows(params.output.pack, work.queries, first_row, thread_in_block()),
      cuda::BlockKeys<recomputes_pages(C)>{
          params.k, work.keys.batch, work.queries.pack / params.packs_per_kv_head, first_key,
          num_keys, in_pages ? paged.table + work.keys.batch * paged.table_stride : nullptr,
          unsigned(paged.page_size), paged.num_pages});
}

// O in local memory: beside rare code there are no registers for it, and the steps would spill.
template <Kernel C>
class ParkedOutput {
 public:
  __device__ __forceinline__ void park(const ThreadTile<C>& r) {
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) output_[i] = r.output[i];
  }
  __device__ __forceinline__ void restore(ThreadTile<C>& r) const {
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) r.output[i] = output_[i];
  }

 private:
  static constexpr int kNumbers = C.shape.head_dim_v / 2;
  volatile float output_[kNumbers];
};

// Recomputes the lost scores of the last block. The tile goes on by online steps, unless it tracks
// the maximum.
template <Kernel C>
__device__ __forceinline__ void recompute_block(Consumer<C>& c, ThreadTile<C>& r) {
  c.tile.recover_scores();
  if (!LoopOf<C>::kTracksMax || c.tile.mode() != TileMode::kMaxTracking) go_online(c);
  constexpr bool kParks = ScoresOf<C>::kRebases;
  ParkedOutput<C> parked;
  if (kParks) parked.park(r);
  const WorkTileOf<C>& work = c.work_tile();
  c.scores.load_ahead(c, r, c.tile.first_key());
  recompute_scores<C>(r.scores, c.params, work, c.first_row_of(work), c.tile.block());
  c.scores.recompute(c, r);
  // e4m3 loses scores in guarded steps alone, which have no mask.
  if (ScoresOf<C>::kRebases && c.is_masked()) c.weights.hide(c, r);
  ScoreStep<C> result;
  online_step(r.scores, r.rows, c.scores, result);
  if (kParks) parked.restore(r);
  c.sum.rescale(r, result);
  LogitsOf<C>::rescale(r, result.rescale);
  LogitsOf<C>::see_weights(r);
  r.add_sums(result);
  c.weights.draw_early(c, r);
  pack<0>(c, r);
}

}  // namespace fa3::hopper
