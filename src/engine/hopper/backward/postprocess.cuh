// SPDX-License-Identifier: Apache-2.0
// After the main kernel: dQ from float32 sums in accumulator order to rows of 16-bit elements,
// times the softmax scale; dK and dV likewise, where splits have summed them. A warpgroup for each
// part of a block (accum_layout.h). Limited by memory bandwidth.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/quad.cuh"
#include "engine/hopper/backward/row_tile.cuh"
#include "engine/hopper/backward/store_wide_row.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

__device__ __forceinline__ void clear(uint32_t (&row)[kQuadLanes]) {
#pragma unroll
  for (uint32_t& pair : row) pair = 0;
}

// A part of dQ, as a warpgroup's accumulators hold it, into rows. A sequence's rows past its used
// ones get zeros.
template <BackwardConfig C, class Tile>
__device__ __forceinline__ void store_part(const RowTensor& to, const Tile& tile, int part,
                                           const float (&sums)[C.dq_accum().floats()],
                                           float scale) {
  const int thread = int(threadIdx.x);
  const int first_row = tile.first_row + C.dq_accum().first_row(part) + fragment_row(thread);
  // Four groups, exchanged within quads, give each lane 8 consecutive columns.
#pragma unroll
  for (int group = 0; group < C.dq_accum().groups(); group += kQuadLanes) {
    uint32_t packed[kRowsPerThread][kQuadLanes];
#pragma unroll
    for (int j = 0; j < kQuadLanes; ++j) {
      const float* const s = sums + (group + j) * AccumLayout::kGroup;
      packed[0][j] = pack_pair<C.element>(s[0] * scale, s[1] * scale);
      packed[1][j] = pack_pair<C.element>(s[2] * scale, s[3] * scale);
    }
    const int column = C.dq_accum().first_column(part) +
                       (group + thread % kQuadLanes) * AccumLayout::kColumnsPerGroup;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      transpose_in_quad(packed[r]);
      const int row = first_row + r * kRowDistance;
      if (C.general() && row >= tile.used) clear(packed[r]);  // whatever the keys hold
      store_global_if(row < tile.owned && column < to.columns,
                      static_cast<uint16_t*>(to.data) + tile.offset(to.strides, row) + column,
                      packed[r]);
    }
  }
}

// Stores a transposed part, whose rows are columns of dQ: turned by 8 by 8, of which four give each
// lane 8 consecutive columns of a row.
template <BackwardConfig C>
__device__ __forceinline__ void store_transposed_part(const RowTensor& to, const RowTile& tile,
                                                      int part,
                                                      const float (&sums)[C.dq_accum().floats()],
                                                      float scale) {
  static_assert(!C.general());
  constexpr int kMatrices = C.dq_accum().groups() * kRowsPerThread;
  static_assert(kMatrices % kQuadLanes == 0);
  const int thread = int(threadIdx.x), lane = thread % kWarpSize;
#pragma unroll
  for (int first = 0; first < kMatrices; first += kQuadLanes) {
    uint32_t packed[kQuadLanes];
#pragma unroll
    for (int j = 0; j < kQuadLanes; ++j) {
      const float* const s = sums + (first + j) * 2;
      packed[j] = transposed(pack_pair<C.element>(s[0] * scale, s[1] * scale));
    }
    transpose_in_quad(packed);
    const int matrix = first + lane % kQuadLanes;
    const int row = tile.first_row + matrix / kRowsPerThread * AccumLayout::kColumnsPerGroup +
                    lane / kQuadLanes;
    const int column = C.dq_accum().first_column(part) + thread / kWarpSize * kRowsPerWarp +
                       matrix % kRowsPerThread * kRowDistance;
    store_global_if(row < tile.owned && column < to.columns,
                    static_cast<uint16_t*>(to.data) + tile.offset(to.strides, row) + column,
                    packed);
  }
}

// Stores a part of a tile's rows in float32.
template <BackwardConfig C>
__device__ __forceinline__ void store_wide_part(const PostprocessParams& p, const RowTile& tile,
                                                int part, float (&sums)[C.dq_accum().floats()],
                                                float scale) {
  RowTensor to = p.gradient;
  const int first_column = C.dq_accum().first_column(part);
  to.columns -= first_column;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = tile.first_row + C.dq_accum().first_row(part) + fragment_row(int(threadIdx.x)) +
                    r * kRowDistance;
    if (C.general() && row >= tile.used) {  // whatever the keys hold
#pragma unroll
      for (int i = 2 * r; i < C.dq_accum().columns() / 2; i += 4) sums[i] = sums[i + 1] = 0;
    }
    store_wide_row(to, tile.offset(to.strides, row) + first_column, row < tile.owned, sums, r,
                   scale, p.adds);
  }
}

template <BackwardConfig C>
__global__ void __launch_bounds__(kWarpgroupSize)
    postprocess_kernel(const __grid_constant__ PostprocessParams p) {
  constexpr int kGroups = C.dq_accum().groups();
  const int thread = threadIdx.x;
  // The last first: the L2 cache still has them.
  const unsigned from_end = gridDim.x - 1 - blockIdx.x;
  const int part = from_end % C.dq_accum().parts();
  const RowTile tile = row_tile<C>(p.tiles, from_end / C.dq_accum().parts());
  const float* const block = p.accum + tile.block * C.dq_accum().block_floats();
  const float scale = C.general() && tile.keys == 1 ? p.scale_of_one_key : p.scale;

  ptx::griddepcontrol_wait();  // all CTAs: this kernel must not end before the main one
  if (C.general() && tile.block < 0) return;
  // Warps without a row have no sums.
  const bool has_rows =
      !C.general() || C.dq_accum().first_row_of_warp(part, thread) < tile.used - tile.first_row;
  float sums[kGroups * AccumLayout::kGroup] = {};
  if (has_rows) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      reinterpret_cast<float4&>(sums[group * AccumLayout::kGroup]) =
          *reinterpret_cast<const float4*>(block + C.dq_accum().offset(part, group, thread));
    }
#pragma unroll 1
    for (int i = 1; i < p.sums; ++i) {
      const float* const next = block + i * p.sum_blocks * C.dq_accum().block_floats();
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const float4 more =
            *reinterpret_cast<const float4*>(next + C.dq_accum().offset(part, group, thread));
        float* const sum = sums + group * AccumLayout::kGroup;
        sum[0] += more.x, sum[1] += more.y, sum[2] += more.z, sum[3] += more.w;
      }
    }
  }

  if constexpr (C.wide()) {
    store_wide_part<C>(p, tile, part, sums, scale);
  } else if constexpr (C.dq_accum().transposed()) {
    store_transposed_part<C>(p.gradient, tile, part, sums, scale);
  } else {
    store_part<C>(p.gradient, tile, part, sums, scale);
  }
}

}  // namespace fa3::hopper
