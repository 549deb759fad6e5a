// SPDX-License-Identifier: Apache-2.0
// Tiles from global to shared memory, by TMA: how layout.h says they lie.
#pragma once

#include "engine/hopper/ptx/mbarrier.cuh"
#include "engine/hopper/ptx/tma.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper::tile {

// Some rows of a tile, one copy a slab. Bytes outside the tensor arrive as zeros and count like
// others. The barrier also waits for `more_bytes` of the copies that follow. once: as in
// cp_async_bulk_tensor_load().
__device__ __forceinline__ void load_rows(const CUtensorMap& map, TileLayout layout, int rows,
                                          uint32_t smem, uint32_t barrier, ptx::TileCoordinates at,
                                          int more_bytes = 0, bool once = false) {
  ptx::mbarrier_arrive_expect_tx(barrier, layout.slabs() * rows * layout.row_bytes() + more_bytes);
  const int first_column = at.column;
  for (int slab = 0; slab < layout.slabs(); ++slab) {
    at.column = first_column + slab * layout.slab_columns();
    ptx::cp_async_bulk_tensor_load(smem + slab * layout.slab_bytes(), map, at, barrier, once);
  }
}

// A clipped map (tensor_map.h) and the same boxes with an origin in memory: TMA reads a
// map's origin for a box that lies outside of its tensor altogether.
struct ClippedMap {
  const CUtensorMap& inside;
  const CUtensorMap& outside;
  int columns;  // of the tensor

  // For a box that begins at this column.
  __device__ __forceinline__ const CUtensorMap& map_of_box(bool some_rows_inside,
                                                           int column) const {
    return some_rows_inside && column < columns ? inside : outside;
  }
};

// Without telling the barrier of the bytes, so that a tile may come in several boxes.
__device__ __forceinline__ void issue_clipped_rows(const ClippedMap& map, TileLayout layout,
                                                   bool some_inside, uint32_t smem,
                                                   uint32_t barrier, ptx::TileCoordinates at) {
  for (int slab = 0; slab < layout.slabs(); ++slab) {
    at.column = slab * layout.slab_columns();
    ptx::cp_async_bulk_tensor_load(smem + slab * layout.slab_bytes(),
                                   map.map_of_box(some_inside, at.column), at, barrier);
  }
}

__device__ __forceinline__ void load_clipped_rows(const ClippedMap& map, TileLayout layout,
                                                  int rows, bool some_inside, uint32_t smem,
                                                  uint32_t barrier, ptx::TileCoordinates at,
                                                  int more_bytes = 0) {
  ptx::mbarrier_arrive_expect_tx(barrier, layout.slabs() * rows * layout.row_bytes() + more_bytes);
  issue_clipped_rows(map, layout, some_inside, smem, barrier, at);
}

// Where a clipped map (tensor_map.h) has the rows of a tile that begins at row `first` of a
// sequence: the sequence's own `count` rows begin at row `begin` of the tensor; behind them come
// zeros.
__device__ __forceinline__ ptx::TileCoordinates clipped_place(int begin, int count, int first,
                                                              int tile_rows, int head, int batch) {
  const int left = count - first;
  const int rows = left < 0 ? 0 : left < tile_rows ? left : tile_rows;
  return {0, begin + first + rows, head, batch, tile_rows - rows};
}

}  // namespace fa3::hopper::tile
