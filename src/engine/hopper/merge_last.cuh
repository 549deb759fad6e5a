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
#include "engine/hopper/piece/smem_plan.cuh"
#include "engine/hopper/ptx/count.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

// By one thread of the producer, before the pieces are there.
__device__ __forceinline__ void prepare_count(const PieceCounts& counts, int tile) {
  uint64_t* const cell = counts.cells + tile;
  const uint64_t found = __ldcg(reinterpret_cast<const unsigned long long*>(cell));
  if (found >> counts.kBits != counts.launch) {
    ptx::replace(cell, found, counts.launch << counts.kBits);
  }
}

// Rows times pieces that a warp asks for at once; tiles in few pieces are merged by several rows.
inline constexpr int kAtOnce = 16, kFewPieces = 4;

template <ForwardConfig C, int Rows, int Together>
__device__ __forceinline__ void merge_rows(const ForwardParams& params, const CutTile& tile,
                                           int warp, int lane) {
  constexpr int kStep = C.consumer_warps();
#pragma unroll 1
  for (int row = warp; row < params.pieces.rows; row += Rows * kStep) {
#pragma unroll 1
    for (int first = 0; first < params.pieces.columns; first += kMergedColumns) {
      const int column = first + lane * kLaneColumns;
      MergedSum sums[Rows];
      add_pieces<Rows, Together>(sums, params.pieces, tile, row, kStep, 0, column);
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
        const int tile_row = row + r * kStep;
        if (tile_row >= params.pieces.rows) break;
        finish_row<C.output(), C.stores_any_rows()>(sums[r], params.output, tile, tile_row, column);
      }
    }
  }
}

// The two tiles at most that a thread block has pieces of. By the consumer, who has stored them all.
template <ForwardConfig C>
__device__ __forceinline__ void merge_cut_tiles(const ForwardParams& params, SmemPlan<C>& smem) {
  constexpr int kThreads = C.consumers() * kWarpgroupSize;
  const auto sync = [] { ptx::bar_sync(int(NamedBarrier::kMerge), kThreads); };
  CutTiles& cut = smem.cut.tiles;
  const int thread = int(thread_in_block()) - kWarpgroupSize;
  const int count = cut.count;
  if (count == 0) return;
  sync();
  if (thread < count) {
    const CutTile& tile = cut.tiles[thread];
    uint64_t* const cell = params.counts.cells + tile.later_slots;
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
    if (tile.num_pieces <= kFewPieces) {
      merge_rows<C, kAtOnce / kFewPieces, kFewPieces>(params, tile, warp, lane);
    } else {
      merge_rows<C, 1, kAtOnce>(params, tile, warp, lane);
    }
  }
}

}  // namespace fa3::hopper
