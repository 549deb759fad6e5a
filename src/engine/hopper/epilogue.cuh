// SPDX-License-Identifier: Apache-2.0
// From accumulators to global memory, one warp at a time: normalise 16 rows, write the log-sum-exp,
// pack, lay the rows into the spent Q rows of the same warp, and let the copy engine store them. No
// other warp is waited for.
#pragma once

#include "engine/hopper/forward_params.h"
#include "engine/hopper/piece/smem_plan.cuh"
#include "engine/hopper/piece/softmax.cuh"
#include "engine/hopper/ptx/matrix.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/ptx/tma.cuh"

namespace fa3::hopper {

// `first_row` counts from the start of the sequence, `tile_row` from the start of the tile; both are
// the warp's first row. Lane 0 issues the stores, so it is the one that can wait for them.
template <ForwardConfig C>
__device__ __forceinline__ void store_rows(const ForwardParams& params, const WorkItem& item,
                                           float (&output)[C.head_dim_v / 2], const RowState& rows,
                                           uint32_t spent_q, int tile_row) {
  const int lane = ptx::tid_x() % kWarpSize;
  const int first_row = item.index.m_block * C.block_m + tile_row;
  float sum[kRowsPerThread];
  float inverse[kRowsPerThread];
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    sum[row] = quad_sum(rows.sum[row]);
    inverse[row] = sum[row] == 0.0f ? 0.0f : 1.0f / sum[row];
  }
#pragma unroll
  for (int i = 0; i < C.head_dim_v / 2; ++i) output[i] *= inverse[fragment_row_slot(i)];
  // A row without keys is zero even where a hidden V was Inf or NaN.
  if (__any_sync(0xffffffff, inverse[0] == 0.0f || inverse[1] == 0.0f)) {
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) {
      if (inverse[fragment_row_slot(i)] == 0.0f) output[i] = 0.0f;
    }
  }

  // Matrices of 8 rows by 8 columns: lane l addresses row l % 16 and the chunk of columns l / 16.
  constexpr tile::TileLayout kO{C.block_m, C.head_dim_v};
#pragma unroll
  for (int pair = 0; pair < C.head_dim_v / 16; ++pair) {
    uint32_t packed[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      packed[j] = ptx::cvt_pair<C.element>(output[8 * pair + 2 * j], output[8 * pair + 2 * j + 1]);
    }
    const int row = tile_row + lane % kRowsPerWarp;
    const int column = pair * 16 + lane / kRowsPerWarp * 8;
    ptx::stmatrix_x4(spent_q + kO.chunk_offset(row, column), packed);
  }
  ptx::fence_proxy_async();
  __syncwarp();
  if (lane == 0) {
    for (int slab = 0; slab < kO.slabs(); ++slab) {
      ptx::cp_async_bulk_tensor_store(params.o_map,
                                      {slab * kO.slab_columns(), first_row >> params.pack_log2,
                                       item.index.head, item.index.batch},
                                      spent_q + slab * kO.slab_bytes() + tile_row * kO.row_bytes());
    }
    ptx::cp_async_bulk_commit_group();
  }

  if (params.lse && lane % tile::kQuadLanes == 0) {
    float* const batch_lse = params.lse + item.index.batch * params.lse_batch_stride;
    const int pack = params.pack_log2;
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      const int packed_row = first_row + lane / tile::kQuadLanes + row * tile::kRowDistance;
      const int q_row = packed_row >> pack;
      const int head = (item.index.head << pack) + (packed_row & ((1 << pack) - 1));
      const float lse = sum[row] == 0.0f ? -kInfinity : (rows.ref[row] + ptx::lg2(sum[row])) * kLn2;
      if (q_row < params.seqlen_q) {
        batch_lse[head * params.lse_head_stride + q_row * params.lse_row_stride] = lse;
      }
    }
  }
}

}  // namespace fa3::hopper
