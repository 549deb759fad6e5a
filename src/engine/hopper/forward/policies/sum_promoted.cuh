// SPDX-License-Identifier: Apache-2.0
// The policy of sums that are promoted. Rows of dense tiles leave through the shared memory of the
// earlier parts, by TMA.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/forward/policies/e4m3_smem.cuh"
#include "engine/hopper/forward/policies/promoted_sum.cuh"
#include "engine/hopper/forward/policies/sum.cuh"
#include "engine/hopper/ptx/bulk.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/stored_matrix.h"

namespace fa3::hopper {

// O of a warp on its way out: its 16 rows, packed, in the warp's own shared memory, from where TMA
// takes them while the warp goes on.
template <Kernel C>
class StagedRows {
 public:
  // `address`: the warp's rows lie there.
  __device__ __forceinline__ explicit StagedRows(uint32_t address) : address_(address) {}

  // Before the warp stores there again, and before the kernel ends.
  static __device__ __forceinline__ void wait() {
    ptx::cp_async_bulk_wait_group_read<0>();
    __syncwarp();
  }

  // The thread's numbers of O, each times its row's factor.
  __device__ __forceinline__ void put(const float (&output)[C.shape.head_dim_v / 2],
                                      const float (&factor)[kRowsPerThread]) const {
    constexpr tile::TileLayout kRows = C.tiles_in_smem().staged_o;
    constexpr int kDepth = kRows.mma_depth();
    const auto [row, column] = tile::stored_place(int(thread_in_block() % kWarpSize));
#pragma unroll
    for (int step = 0; step < kRows.columns / kDepth; ++step) {
      uint32_t matrices[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = 8 * step + 2 * j;
        const float by = factor[fragment_row_index(i)];
        matrices[j] = pack_pair<C.element>(output[i] * by, output[i + 1] * by);
      }
      ptx::stmatrix_x4(address_ + kRows.chunk_offset(row, step * kDepth + column), matrices);
    }
    ptx::fence_proxy_async();
    __syncwarp();
  }

  // `first_row`: the warp's, in its sequence.
  __device__ __forceinline__ void send(const ForwardParams& params, const cuda::QueryRows& queries,
                                       int first_row) const {
    constexpr tile::TileLayout kRows = C.tiles_in_smem().staged_o;
    const int query = params.output.pack.query(first_row);
    // Out of shared memory once, not for each copy.
    ptx::TileCoordinates at{0, queries.begin + query, queries.pack, queries.batch};
    if (query >= queries.count || !ptx::elect_sync()) return;
    if (sends_slabs_together(C) && params.o_slabs_together) {
      ptx::cp_async_bulk_tensor_store(params.o_map, {0, 0, at.head, at.batch, at.row}, address_);
      ptx::cp_async_bulk_commit_group();
      return;
    }
#pragma unroll
    for (int slab = 0; slab < kRows.slabs(); ++slab) {
      at.column = slab * kRows.slab_columns();
      if (at.column >= params.output.o.columns) break;
      ptx::cp_async_bulk_tensor_store(params.o_map, at, address_ + slab * kRows.slab_bytes());
    }
    ptx::cp_async_bulk_commit_group();
  }

 private:
  const uint32_t address_;
};

// Rows of dense e4m3 tiles: their numbers are multiplied once, by their values' scale and by what
// normalises them, and leave through the place of the earlier parts of O. `values` is what V's
// encoding leaves to do.
template <Kernel C, class Values>
__device__ __forceinline__ void stage_rows(const ForwardParams& params,
                                           const cuda::QueryRows& queries, int first_row,
                                           uint32_t place, float (&output)[C.shape.head_dim_v / 2],
                                           const RowState& rows, const Values& values) {
  const cuda::ForwardOutput& to = params.output;
  const float sum[kRowsPerThread] = {quad_sum(rows.sum[0]), quad_sum(rows.sum[1])};
  if (to.lse.data != nullptr) {
    const cuda::LaneRows lane_rows(to.pack, queries, first_row, thread_in_block());
    cuda::store_lse<kTopLog2<C>>(to.lse, queries.batch, lane_rows, rows.ref, sum);
  }
  float factor[kRowsPerThread] = {cuda::inverse_of(sum[0]), cuda::inverse_of(sum[1])};
  values.restore_normalised(output, factor);
  if (to.some_rows_see_no_key) {  // whatever the values are that they do not see
#pragma unroll
    for (int i = 0; i < C.shape.head_dim_v / 2; ++i) {
      const int row = fragment_row_index(i);
      if (rows.ref[row] == -kInfinity && sum[row] == 0.0f) output[i] = 0.0f;
    }
  }
  const StagedRows<C> staged(place);
  staged.wait();
  staged.put(output, factor);
  staged.send(params, queries, first_row);
}

// `c` is the Consumer, `r` the ThreadTile.
template <Kernel C>
requires(C.e4m3()) struct SumOf<C> : PromotedSum<C> {
  using Smem = E4m3Smem<C>;

  // A tile starts.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void start(const Consumer& c, Tile&) {
    starts_ = true;
    PromotedSum<C>::start(c.tile.block());
    if (tracks_max(C)) stop_at(c.tile.blocks().online_from);
  }

  // The newest part of O joins the earlier ones.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void promote(const Consumer& c, Tile& r) {
    if (stages_rows(C)) StagedRows<C>::wait();
    if (PromotedSum<C>::promote(r.output, r.rows, address(c))) starts_ = true;
  }

  template <int Begin, int End, class Tile>
  __device__ __forceinline__ void pack(Tile& r) const {
    const float(&p)[Tile::kScores] = r.scores;
#pragma unroll
    for (int i = Begin / 4; i < End / 4; ++i) {
      r.p[i / 4][i % 4] = pack_e4m3(p[e4m3_element(i, 0)], p[e4m3_element(i, 1)],
                                    p[e4m3_element(i, 2)], p[e4m3_element(i, 3)]);
    }
  }
  template <class Tile>
  __device__ __forceinline__ void issue(Tile& r, uint32_t v) {
    tile::issue_abt<C.tiles_in_smem().v>(r.output, r.p, v, !starts_);
    ptx::wgmma_commit_group();
    starts_ = false;
  }

  // Most often nothing moves: then a vote is all.
  template <class Tile>
  __device__ __forceinline__ void rescale(Tile& r, const StepResult& step) {
    if (!__any_sync(0xffffffff, step.rescale[0] != 1.0f || step.rescale[1] != 1.0f)) return;
    follow(r, step.rescale);
  }
  // Where it moves in most steps.
  template <class Tile>
  __device__ __forceinline__ void follow(Tile& r, const float (&factor)[kRowsPerThread]) {
    PromotedSum<C>::rescale(factor);
    r.rescale_output(factor);
  }

  template <bool IsLast, class Consumer, class Tile>
  __device__ __forceinline__ void finish(const Consumer& c, Tile& r, const RowState& rows) const {
    const uint32_t stage = c.stages.previous_work_tile();
    const WorkTileOf<C>& work = c.smem.work_tiles[stage];
    const int first_row = c.first_row_of(work);
    this->add_to(r.output, address(c));
    const auto values =
        GateOf<C>::values(c.params, work.queries, first_row, r,
                          ScoresOf<C>::values(c.params, work, c.smem.sum.tiles[stage]));
    if constexpr (stages_rows(C)) {
      stage_rows<C>(c.params, work.queries, first_row, promoted_sum(c.stages.at(), c.warp(), 0),
                    r.output, rows, values);
    } else {
      cuda::store_rows<C.element, kTopLog2<C>, C.general()>(c.params.output, work.queries,
                                                            first_row, r.output, rows, values);
    }
    c.stages.release_work_tile(stage);
  }
  static __device__ __forceinline__ void close() {
    if (stages_rows(C)) StagedRows<C>::wait();
  }

  // ---- Where loops of steps stop, in kernels that track the maximum ----

  // Behind this block or before it, where a part of O ends; at the latest behind the tile's last. A
  // part that ends there too is added up where the tile is finished.
  __device__ __forceinline__ void stop_at(int block) {
    stop_ = block > 0 ? block : 0;
    if (promotes_under_scores(C)) return;
    if (this->next_end() > stop_) stop_ = this->next_end();
  }
  __device__ __forceinline__ bool is_stop(int block) const {
    return block <= stop_;
  }

 private:
  // Where the thread's share of the earlier parts lies.
  template <class Consumer>
  static __device__ __forceinline__ uint32_t address(const Consumer& c) {
    return promoted_sum(c.stages.at(), c.warp(), thread_in_block() % kWarpSize);
  }

  bool starts_ = false;  // the next product is the first of the tile, or of a part: it assigns O
  int stop_ = 0;
};

}  // namespace fa3::hopper
