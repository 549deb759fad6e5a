// SPDX-License-Identifier: Apache-2.0
// The two rows of a tile that a lane holds (fragment.h), as the tensors know them.
#pragma once

#include "engine/cuda/fragment.h"
#include "engine/cuda/rows.h"
#include "engine/cuda/thread.cuh"

namespace fa3::cuda {

struct LaneRows {
  int head[kRowsPerThread];
  int row[kRowsPerThread];
  bool exists[kRowsPerThread];

  // first_row: the warp's, in its sequence.
  __device__ __forceinline__ LaneRows(HeadPack pack, const QueryRows& queries, int first_row) {
    const int lane = int(thread_in_block() % kWarpSize);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int packed_row = first_row + lane / kQuadLanes + r * kRowDistance;
      head[r] = pack.head(queries.pack, packed_row);
      row[r] = queries.begin + pack.query(packed_row);
      exists[r] = pack.query(packed_row) < queries.count;
    }
  }
};

}  // namespace fa3::cuda
