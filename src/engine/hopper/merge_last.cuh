// SPDX-License-Identifier: Apache-2.0
// Pieces of a cut tile, merged by whoever is done with the last of them, a thread block or (stream/) a warp: no
// second kernel, whose start a small call would wait for. They count themselves in a cell for each tile. Cells
// lie in the caller's workspace, which holds anything at first: a cell counts from zero once it holds the
// launch's own number, which each thread block that needs it puts there if it is missing. The merging
// thread block sets it back, so that a captured launch finds it as it left it. Next: merge_row.cuh.
#pragma once

#include "engine/hopper/forward_params.h"
#include "engine/hopper/merge_row.cuh"
#include "engine/hopper/piece/roles.cuh"
#include "engine/hopper/ptx/count.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

// Of a tile's rows, those that a thread block merges; each share has a cell of its own.
struct RowShare {
  int first = 0, step = 1;
};

__device__ __forceinline__ int count_of(const CutTile& tile, RowShare share) {
  return tile.later_slots * share.step + share.first;
}

// A count of pieces, for one thread.
class PieceCount {
 public:
  __device__ __forceinline__ PieceCount(const PieceCounts& counts, int number)
      : counts_(counts), cell_(counts.cells + number) {}

  // Before the pieces are there: prepare() what look() found some time before.
  __device__ __forceinline__ uint64_t look() const {
    return __ldcg(reinterpret_cast<const unsigned long long*>(cell_));
  }
  __device__ __forceinline__ void prepare(uint64_t found) const {
    if (found >> counts_.kBits == counts_.launch) return;
    ptx::replace(cell_, found, counts_.launch << counts_.kBits);
  }
  // A piece is there, stored by this thread and by those that a barrier has brought here. Whether it is the
  // last of so many: then a barrier shows them all to those threads, and the cell counts from zero again.
  __device__ __forceinline__ bool add(int of) const {
    const uint64_t before = ptx::add_in_order(cell_, 1);
    const bool is_last = (before & PieceCounts::kMost) + 1 == unsigned(of);
    if (is_last) *cell_ = counts_.launch << PieceCounts::kBits;
    return is_last;
  }

 private:
  const PieceCounts& counts_;
  uint64_t* const cell_;
};

// Rows times pieces that a warp asks for at once; tiles in few pieces are merged by several rows.
inline constexpr int kAtOnce = 16, kFewPieces = 4;

// Rows of a tile from `row` on, `step` apart. By a warp.
template <ForwardConfig C, int Rows, int Together>
__device__ __forceinline__ void merge_rows(const ForwardParams& params, const CutTile& tile,
                                           int row, int step) {
#pragma unroll 1
  for (int first = 0; first < params.pieces.columns; first += kMergedColumns) {
    const int column = first + ptx::lane() * kLaneColumns;
    MergedSum sums[Rows];
    add_pieces<Rows, Together>(sums, params.pieces, tile, row, step, 0, column);
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      const int tile_row = row + r * step;
      if (tile_row >= params.pieces.rows) break;
      finish_row<C.output(), C.stores_any_rows()>(sums[r], params.output, tile, tile_row, column);
    }
  }
}

template <ForwardConfig C, int Rows, int Together>
__device__ __forceinline__ void merge_share(const ForwardParams& params, const CutTile& tile,
                                            RowShare share, int warp) {
  const int step = C.consumer_warps() * share.step;
#pragma unroll 1
  for (int row = share.first + warp * share.step; row < params.pieces.rows; row += Rows * step) {
    merge_rows<C, Rows, Together>(params, tile, row, step);
  }
}

// The two tiles at most that a thread block has pieces of. By those of its threads that have stored them
// all, of which this is number `thread`.
template <ForwardConfig C>
__device__ __forceinline__ void merge_cut_tiles(const ForwardParams& params, CutTiles& cut,
                                                int thread, RowShare share = {}) {
  constexpr int kThreads = C.consumer_warps() * kWarpSize;
  const auto sync = [] { ptx::bar_sync(int(NamedBarrier::kMerge), kThreads); };
  const int count = cut.count;
  if (count == 0) return;
  sync();
  if (thread < count) {
    const CutTile& tile = cut.tiles[thread];
    cut.is_last[thread] = PieceCount(params.counts, count_of(tile, share)).add(tile.num_pieces);
  }
  sync();
  const int warp = thread / kWarpSize;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (!cut.is_last[i]) continue;
    const CutTile tile = cut.tiles[i];
    if constexpr (C.streams()) {  // few rows, and few pieces
      merge_share<C, 1, kFewPieces>(params, tile, share, warp);
    } else if (tile.num_pieces <= kFewPieces) {
      merge_share<C, kAtOnce / kFewPieces, kFewPieces>(params, tile, share, warp);
    } else {
      merge_share<C, 1, kAtOnce>(params, tile, share, warp);
    }
  }
}

}  // namespace fa3::hopper
