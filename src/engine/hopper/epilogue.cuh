// SPDX-License-Identifier: Apache-2.0
// From accumulators straight to global memory, one warp and its 16 rows at a time: normalise, pack,
// trade columns within quads, store; and the log-sum-exp. Shared memory is left to loads, and no other
// warp is waited for.
#pragma once

#include "engine/hopper/forward_params.h"
#include "engine/hopper/piece/softmax.cuh"
#include "engine/hopper/ptx/global.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/quad.cuh"

namespace fa3::hopper {

// A row of a tile, as the tensors know it.
struct QueryRow {
  int query;
  int head;
};

__device__ __forceinline__ QueryRow unpacked(const ForwardParams& params, int packed_head,
                                             int packed_row) {
  const int pack = params.pack_log2;
  return {packed_row >> pack, (packed_head << pack) + (packed_row & ((1 << pack) - 1))};
}

// Where a lane's stores go: of its two rows, 8 columns of each 32.
template <ForwardConfig C>
struct LaneOutput {
  static constexpr int kColumns = 8;
  static constexpr int kStride = kColumns * tile::kQuadLanes;
  static_assert(C.head_dim_v % kStride == 0);

  uint16_t* row[kRowsPerThread];
  bool row_exists[kRowsPerThread];
  int columns_left;  // of the tensor, from the lane's first

  __device__ __forceinline__ LaneOutput(const ForwardParams& params, const TileIndex& index,
                                        int first_row) {
    const int lane = int(ptx::tid_x() % kWarpSize);
    const int lane_column = lane % tile::kQuadLanes * kColumns;
    uint16_t* const batch =
        static_cast<uint16_t*>(params.o) + index.batch * params.o_batch_stride + lane_column;
    columns_left = params.head_dim_v - lane_column;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int packed_row = first_row + lane / tile::kQuadLanes + r * tile::kRowDistance;
      const QueryRow at = unpacked(params, index.head, packed_row);
      row[r] = batch + at.head * params.o_head_stride + at.query * params.o_row_stride;
      row_exists[r] = at.query < params.seqlen_q;
    }
  }

  __device__ __forceinline__ void store(int r, int column, const uint32_t (&packed)[4]) const {
    ptx::store_global_if(row_exists[r] && column < columns_left, row[r] + column, packed);
  }
};

// The four lanes of a quad hold 2 of each 8 columns; traded among them, each lane has 8 columns in a
// row, one 16-byte store. Exchanges queue behind stores, so the stores come two groups at a time.
template <ForwardConfig C>
__device__ __forceinline__ void store_output(const LaneOutput<C>& lane_output,
                                             const float (&output)[C.head_dim_v / 2],
                                             const float (&sum)[kRowsPerThread]) {
  const float inverse[kRowsPerThread] = {ptx::rcp(sum[0]), ptx::rcp(sum[1])};
  constexpr int kGroups = C.head_dim_v / LaneOutput<C>::kStride;
  uint32_t packed[kGroups][kRowsPerThread][tile::kQuadLanes];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
#pragma unroll
      for (int j = 0; j < tile::kQuadLanes; ++j) {
        const int i = group * LaneOutput<C>::kStride / 2 + 4 * j + 2 * r;
        packed[group][r][j] =
            ptx::cvt_pair<C.element>(output[i] * inverse[r], output[i + 1] * inverse[r]);
      }
      tile::transpose_in_quad(packed[group][r]);
    }
    if (group % 2 == 0 && group + 1 < kGroups) continue;
#pragma unroll
    for (int done = group / 2 * 2; done <= group; ++done) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        lane_output.store(r, done * LaneOutput<C>::kStride, packed[done][r]);
      }
    }
  }
}

// Rows without keys are zero, even where a hidden V was Inf or NaN: written again.
template <ForwardConfig C>
__device__ __forceinline__ void clear_rows_without_keys(const LaneOutput<C>& lane_output,
                                                        const float (&sum)[kRowsPerThread]) {
  [[maybe_unused]] constexpr int kUnroll =
      C.short_tile_change() ? 1 : C.head_dim_v / LaneOutput<C>::kStride;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    if (sum[r] != 0.0f) continue;
#pragma unroll kUnroll
    for (int column = 0; column < C.head_dim_v; column += LaneOutput<C>::kStride) {
      lane_output.store(r, column, {});
    }
  }
}

// Without branches and before the output: its long address arithmetic fills the exchanges' waits.
template <ForwardConfig C>
__device__ __forceinline__ void store_lse(const ForwardParams& params, const TileIndex& index,
                                          const float (&ref)[kRowsPerThread],
                                          const float (&sum)[kRowsPerThread], int first_row) {
  const int lane = int(ptx::tid_x() % kWarpSize);
  const bool stores = params.lse && lane % tile::kQuadLanes == 0;
  float* const batch_lse = params.lse + index.batch * params.lse_batch_stride;
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    const int packed_row = first_row + lane / tile::kQuadLanes + row * tile::kRowDistance;
    const QueryRow at = unpacked(params, index.head, packed_row);
    // A row without keys has sum 0, so -inf comes out.
    ptx::store_global_if(
        stores && at.query < params.seqlen_q,
        batch_lse + at.head * params.lse_head_stride + at.query * params.lse_row_stride,
        (ref[row] + ptx::lg2(sum[row])) * kLn2);
  }
}

// `tile_row`: the warp's first row, from the start of the tile.
template <ForwardConfig C>
__device__ __forceinline__ void store_rows(const ForwardParams& params, const TileIndex& index,
                                           const float (&output)[C.head_dim_v / 2],
                                           const RowState& rows, int tile_row) {
  const int first_row = index.m_block * C.block_m + tile_row;
  const float sum[kRowsPerThread] = {quad_sum(rows.sum[0]), quad_sum(rows.sum[1])};
  const LaneOutput<C> lane_output(params, index, first_row);
  store_lse<C>(params, index, rows.ref, sum, first_row);
  store_output<C>(lane_output, output, sum);
  if (!C.short_tile_change() || params.some_rows_see_no_key) {
    clear_rows_without_keys<C>(lane_output, sum);
  }
}

}  // namespace fa3::hopper
