// SPDX-License-Identifier: Apache-2.0
// Gradients in float32, for callers who add up parts: a thread's numbers of one row, straight from
// its accumulators, 2 of each 8 columns. A quad writes 32 consecutive bytes. Who stores a row is
// its only writer, so that adding to what is there needs no atomics.
#pragma once

#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/tile/rows.h"

namespace fa3::hopper {

// `r`: which of the thread's two rows; `offset`: where that row begins in the tensor. Columns are
// multiples of 8.
template <int Count>
__device__ __forceinline__ void store_wide_row(const cuda::RowTensor& to, int64_t offset,
                                               bool exists, const float (&values)[Count], int r,
                                               float scale, bool adds) {
  const int lane_column = cuda::fragment_lane_column(int(threadIdx.x));
  float* const row = static_cast<float*>(to.data) + offset + lane_column;
  const int columns = exists ? to.columns - lane_column : 0;
#pragma unroll
  for (int i = 2 * r; i < Count; i += 4) {
    const int column = cuda::fragment_column(i);
    float2 sum = {values[i] * scale, values[i + 1] * scale};
    if (adds && column < columns) {
      const float2 before = *reinterpret_cast<const float2*>(row + column);
      sum.x += before.x;
      sum.y += before.y;
    }
    cuda::store_global_if(column < columns, row + column, sum.x, sum.y);
  }
}

}  // namespace fa3::hopper
