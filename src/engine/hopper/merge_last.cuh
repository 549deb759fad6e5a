// SPDX-License-Identifier: Apache-2.0
// Pieces of a cut tile, merged by the thread block that is done with the last of them: no second kernel,
// whose start a small call would wait for. Thread blocks count themselves in a cell for each tile. Cells
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

// By one thread, before the pieces are there: look() some time before prepare().
struct CountCell {
  uint64_t* cell = nullptr;
  uint64_t found = 0;

  static __device__ __forceinline__ CountCell look(const PieceCounts& counts, const CutTile& tile,
                                                   RowShare share = {}) {
    uint64_t* const cell = counts.cells + count_of(tile, share);
    return {cell, __ldcg(reinterpret_cast<const unsigned long long*>(cell))};
  }
  __device__ __forceinline__ void prepare(const PieceCounts& counts) const {
    if (found >> counts.kBits == counts.launch) return;
    ptx::replace(cell, found, counts.launch << counts.kBits);
  }
};

// Rows times pieces that a warp asks for at once; tiles in few pieces are merged by several rows.
inline constexpr int kAtOnce = 16, kFewPieces = 4;

template <ForwardConfig C, int Rows, int Together>
__device__ __forceinline__ void merge_rows(const ForwardParams& params, const CutTile& tile,
                                           RowShare share, int warp, int lane) {
  const int step = C.consumer_warps() * share.step;
#pragma unroll 1
  for (int row = share.first + warp * share.step; row < params.pieces.rows; row += Rows * step) {
#pragma unroll 1
    for (int first = 0; first < params.pieces.columns; first += kMergedColumns) {
      const int column = first + lane * kLaneColumns;
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
    uint64_t* const cell = params.counts.cells + count_of(tile, share);
    const uint64_t before = ptx::add_in_order(cell, 1);
    const bool last = (before & PieceCounts::kMost) + 1 == unsigned(tile.num_pieces);
    if (last) *cell = params.counts.launch << PieceCounts::kBits;
    cut.is_last[thread] = last;
  }
  sync();
  const int warp = thread / kWarpSize, lane = thread % kWarpSize;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (!cut.is_last[i]) continue;
    const CutTile tile = cut.tiles[i];
    if constexpr (C.streams()) {  // few rows, and few pieces
      merge_rows<C, 1, kFewPieces>(params, tile, share, warp, lane);
    } else if (tile.num_pieces <= kFewPieces) {
      merge_rows<C, kAtOnce / kFewPieces, kFewPieces>(params, tile, share, warp, lane);
    } else {
      merge_rows<C, 1, kAtOnce>(params, tile, share, warp, lane);
    }
  }
}

}  // namespace fa3::hopper
