// SPDX-License-Identifier: Apache-2.0
// After the main kernel: dQ from float32 sums in accumulator order to rows of 16-bit elements, times
// the softmax scale. One warpgroup a part of a query block (dq_parts.h); limited by memory bandwidth.
#pragma once

#include "engine/cuda/instructions.cuh"
#include "engine/cuda/quad.cuh"
#include "engine/hopper/backward/backward_config.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/ptx/grid.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
__global__ void __launch_bounds__(kWarpgroupSize)
    postprocess_kernel(const __grid_constant__ PostprocessParams p) {
  constexpr int kGroups = C.dq_parts().groups();
  const int thread = threadIdx.x;
  // The last first, which the L2 cache still has.
  const unsigned from_end = gridDim.x - 1 - blockIdx.x;
  const int part = from_end % C.dq_parts().parts();
  const int64_t block = from_end / C.dq_parts().parts();
  const int m_block = int(block % p.scratch.q_blocks);
  const int head = int(block / p.scratch.q_blocks % p.scratch.heads);
  const int batch = int(block / p.scratch.q_blocks / p.scratch.heads);
  const float* const chunk = p.scratch.dq_sum + block * C.dq_parts().chunk_floats();
  const int first_row = m_block * C.block_m + C.dq_parts().first_row(part) + fragment_row(thread);

  ptx::griddepcontrol_wait();
  float4 sums[kGroups];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    sums[group] =
        *reinterpret_cast<const float4*>(chunk + C.dq_parts().offset(part, group, thread));
  }

  // Four groups, traded within quads, give each lane 8 columns in a row.
#pragma unroll
  for (int group = 0; group < kGroups; group += kQuadLanes) {
    uint32_t packed[kRowsPerThread][kQuadLanes];
#pragma unroll
    for (int j = 0; j < kQuadLanes; ++j) {
      const float4 s = sums[group + j];
      packed[0][j] = pack_pair<C.element>(s.x * p.scale, s.y * p.scale);
      packed[1][j] = pack_pair<C.element>(s.z * p.scale, s.w * p.scale);
    }
    const int column =
        C.dq_parts().first_column(part) + (group + thread % kQuadLanes) * DqParts::kColumnsPerGroup;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      transpose_in_quad(packed[r]);
      const int row = first_row + r * kRowDistance;
      store_global_if(
          row < p.seqlen_q && column < p.dq.columns,
          static_cast<uint16_t*>(p.dq.data) + p.dq.strides.offset(batch, head, row) + column,
          packed[r]);
    }
  }
}

}  // namespace fa3::hopper
