// SPDX-License-Identifier: Apache-2.0
// The end of a key block: dK and dV from accumulators through shared memory to global memory, each
// warpgroup its own 64 keys. TMA leaves out what lies past the end of the keys. Where steps are
// split, CTAs add to sums in global memory instead.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/backward/add_accum.cuh"
#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/backward/store_wide_row.cuh"
#include "engine/hopper/ptx/bulk.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/stored_matrix.h"

namespace fa3::hopper {

// Waits until no warpgroup reads Q and dO any more: their stages hold the gradients next. Each
// warpgroup arrives at a barrier of its own, where the other waits.
__device__ __forceinline__ void keys_done(int warpgroup) {
  ptx::bar_arrive(int(BackwardBarrier::kKeysDone) + warpgroup, 2 * kWarpgroupSize);
  ptx::bar_sync(int(BackwardBarrier::kKeysDone) + (warpgroup ^ 1), 2 * kWarpgroupSize);
}

// A warpgroup's accumulators, times `scale`, as a tile in shared memory.
template <Element E, tile::TileLayout Layout>
__device__ __forceinline__ void store_gradient(uint32_t smem,
                                               const float (&values)[Layout.columns / 2],
                                               float scale) {
  constexpr int kDepth = Layout.mma_depth();
  const auto [row, column] = tile::stored_place(int(thread_in_block() % kWarpgroupSize));
#pragma unroll
  for (int step = 0; step < Layout.columns / kDepth; ++step) {
    uint32_t matrices[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = 8 * step + 2 * j;
      matrices[j] = pack_pair<E>(values[i] * scale, values[i + 1] * scale);
    }
    ptx::stmatrix_x4(smem + Layout.chunk_offset(row, step * kDepth + column), matrices);
  }
}

// The block of the sums of dK and dV that this CTA adds to. Computed only at the end: the loop has
// no register for it.
template <BackwardConfig C>
__device__ __forceinline__ int64_t dkv_block(const BackwardParams& params) {
  const KeyBlockIndex at = params.order.at(int(ptx::block_in_grid()) / C.ctas());
  return params.dkv_accum.numbers.block(at.batch, at.kv_head, at.n_block) +
         at.step_split / kSplitsOfSum * params.dkv_accum.blocks;
}

// Adds a warpgroup's accumulators, times `scale`, to a block's rows from 64 * `rows` on.
template <AccumLayout Layout>
__device__ __forceinline__ void add_gradient(float* block, int rows,
                                             float (&values)[Layout.head_dim / 2], float scale) {
  constexpr int kFloats = Layout.columns() / 2;
#pragma unroll
  for (int slab = 0; slab < Layout.column_parts(); ++slab) {
    float(&part)[kFloats] = reinterpret_cast<float(&)[kFloats]>(values[slab * kFloats]);
#pragma unroll
    for (float& value : part) value *= scale;
    add_part<Layout>(block, rows * Layout.column_parts() + slab, part,
                     int(thread_in_block() % kWarpgroupSize));
  }
}

// A warpgroup's accumulators, times `scale`, to float32 rows. `place`: as for a copy of the tile.
template <BackwardConfig C, int Count>
__device__ __forceinline__ void store_wide_gradient(const WideBackwardParams& params,
                                                    const RowTensor& to,
                                                    const ptx::TileCoordinates& place,
                                                    const float (&values)[Count], float scale) {
  // A clipped box ends where the sequence does.
  const int rows =
      C.general() ? kRowsPerWarpgroup - place.inner : params.extents.seqlen_k - place.row;
  const int first = C.general() ? place.row - rows : place.row;
  const int thread = int(thread_in_block() % kWarpgroupSize);
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = fragment_row(thread) + r * kRowDistance;
    store_wide_row(to, to.strides.offset(place.batch, place.head, first + row), row < rows, values,
                   r, scale, params.adds);
  }
}

// One thread of the warpgroup; a whole warp asks.
__device__ __forceinline__ bool stores() {
  return thread_in_block() % kWarpgroupSize / kWarpSize == 0 && ptx::elect_sync();
}

// One copy a slab. A clipped map's box must not lie outside of its tensor (tensor_map.h): such
// slabs, without one of the tensor's columns or rows, are left out.
template <tile::TileLayout Layout, bool Clipped, int kSlabBytes = Layout.slab_bytes()>
__device__ __forceinline__ void copy_gradient(const CUtensorMap& map, int columns, uint32_t smem,
                                              ptx::TileCoordinates to) {
  if (Clipped && to.inner >= Layout.rows) return;
#pragma unroll 1
  for (int slab = 0; slab < Layout.slabs(); ++slab) {
    to.column = slab * Layout.slab_columns();
    if (Clipped && to.column >= columns) return;
    ptx::cp_async_bulk_tensor_store(map, to, smem + slab * kSlabBytes);
  }
}

// Shared memory must outlive the copies.
__device__ __forceinline__ void finish_copies() {
  ptx::cp_async_bulk_commit_group();
  ptx::cp_async_bulk_wait_group_read<0>();
}

}  // namespace fa3::hopper
