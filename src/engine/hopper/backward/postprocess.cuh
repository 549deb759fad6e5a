// SPDX-License-Identifier: Apache-2.0
// After the main kernel: dQ from float32 sums in accumulator order to rows of 16-bit elements,
// times the softmax scale. One warpgroup a part of a query block (sum_parts.h); limited by memory
// bandwidth.
#pragma once

#include "engine/cuda/instructions.cuh"
#include "engine/cuda/quad.cuh"
#include "engine/hopper/backward/row_tile.cuh"
#include "engine/hopper/ptx/grid.cuh"

namespace fa3::hopper {

__device__ __forceinline__ void clear(uint32_t (&row)[kQuadLanes]) {
#pragma unroll
  for (uint32_t& pair : row) pair = 0;
}

// A part of dQ, as a warpgroup's accumulators hold it, into rows. Those of a sequence past its used
// ones get zeros.
template <BackwardConfig C>
__device__ __forceinline__ void store_part(const RowTensor& to, const RowTile& tile, int part,
                                           const float (&sums)[C.dq_parts().columns() / 2],
                                           float scale) {
  const int thread = int(threadIdx.x);
  const int first_row = tile.first_row + C.dq_parts().first_row(part) + fragment_row(thread);
  // Four groups, traded within quads, give each lane 8 columns in a row.
#pragma unroll
  for (int group = 0; group < C.dq_parts().groups(); group += kQuadLanes) {
    uint32_t packed[kRowsPerThread][kQuadLanes];
#pragma unroll
    for (int j = 0; j < kQuadLanes; ++j) {
      const float* const s = sums + (group + j) * SumParts::kGroup;
      packed[0][j] = pack_pair<C.element>(s[0] * scale, s[1] * scale);
      packed[1][j] = pack_pair<C.element>(s[2] * scale, s[3] * scale);
    }
    const int column = C.dq_parts().first_column(part) +
                       (group + thread % kQuadLanes) * SumParts::kColumnsPerGroup;
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

template <BackwardConfig C>
__global__ void __launch_bounds__(kWarpgroupSize)
    postprocess_kernel(const __grid_constant__ PostprocessParams p) {
  constexpr int kGroups = C.dq_parts().groups();
  const int thread = threadIdx.x;
  // The last first, which the L2 cache still has.
  const unsigned from_end = gridDim.x - 1 - blockIdx.x;
  const int part = from_end % C.dq_parts().parts();
  const RowTile tile = row_tile<C>(p.tiles, from_end / C.dq_parts().parts());
  const float* const chunk = p.sums + tile.block * C.dq_parts().chunk_floats();
  const float scale = C.general() && tile.keys == 1 ? p.scale_of_one_key : p.scale;

  ptx::griddepcontrol_wait();  // all CTAs: this kernel must not end before the main one
  if (C.general() && tile.block < 0) return;
  // Nothing was added for warps without a row.
  const bool has_rows =
      !C.general() || C.dq_parts().first_row_of_warp(part, thread) < tile.used - tile.first_row;
  float sums[kGroups * SumParts::kGroup] = {};
  if (has_rows) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      reinterpret_cast<float4&>(sums[group * SumParts::kGroup]) =
          *reinterpret_cast<const float4*>(chunk + C.dq_parts().offset(part, group, thread));
    }
  }

  store_part<C>(p.gradient, tile, part, sums, scale);
}

}  // namespace fa3::hopper
