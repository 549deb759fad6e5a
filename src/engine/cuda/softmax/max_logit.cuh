// SPDX-License-Identifier: Apache-2.0
// The largest score of each head: of a thread's scores while blocks pass, of a warp's rows where a
// tile ends. A NaN among the scores stays.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/softmax/constants.h"
#include "engine/cuda/softmax/outputs.h"

namespace fa3::cuda {

// The largest of the thread's values [Begin, End) in each of its rows. In two parts a row: one
// chain would wait for itself.
template <int Begin, int End, int Count>
__device__ __forceinline__ void largest_of_rows(const float (&values)[Count],
                                                float (&largest)[kRowsPerThread]) {
  float part[kRowsPerThread][2];
#pragma unroll
  for (int i = Begin; i < End; ++i) {
    float& p = part[fragment_row_index(i)][i % 2];
    p = i < Begin + 4 ? values[i] : max_nan(p, values[i]);
  }
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) largest[r] = max_nan(part[r][0], part[r][1]);
}

// `largest` of each of the thread's rows becomes the largest of itself and of their P [Begin, End).
// None has a sign, so their bits compare as integers, and NaN is above all numbers. Hopper compares
// three integers in one instruction, but two floats.
template <int Begin, int End, int Count>
__device__ __forceinline__ void raise_to_largest_p(float (&largest)[kRowsPerThread],
                                                   const float (&p)[Count]) {
#pragma unroll
  for (int i = Begin; i < End; i += 2) {  // neighbours of a row
    float& most = largest[fragment_row_index(i)];
    const int of_two = max(__float_as_int(p[i]), __float_as_int(p[i + 1]));
    most = __int_as_float(max(of_two, __float_as_int(most)));
  }
}

__device__ __forceinline__ float max_nan_of_lanes(float x, int distance) {
  return max_nan(x, __shfl_xor_sync(0xffffffff, x, distance));
}

// A tile's rows have been seen: `largest` of a thread's two rows, to natural units by `scale`. Rows
// of one head are reduced first, so that a warp has as many atomics as heads, or two a quad.
__device__ __forceinline__ void raise_max_logits(const MaxLogitParams& to, int sequence,
                                                 PackGqa pack, const QueryRows& queries,
                                                 int first_row,
                                                 const float (&largest)[kRowsPerThread],
                                                 const float (&scale)[kRowsPerThread]) {
  const LaneRows rows(pack, queries, first_row, thread_in_block());
  float most[kRowsPerThread];
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    // -inf times a scale of 0 would be NaN.
    const bool sees = rows.used[r] && largest[r] != -kInfinity;
    most[r] = sees ? largest[r] * scale[r] : -kInfinity;
    most[r] = max_nan_of_lanes(max_nan_of_lanes(most[r], 1), 2);
  }
  const int lane = int(thread_in_block() % kWarpSize);
  const bool one_head = pack.heads() <= kRowDistance;  // of both rows
  if (one_head) {
    most[0] = max_nan(most[0], most[1]);
    for (int distance = kQuadLanes * pack.heads(); distance < kWarpSize; distance *= 2) {
      most[0] = max_nan_of_lanes(most[0], distance);
    }
  }
  const int quads = one_head ? pack.heads() : kRowDistance;
  if (lane % kQuadLanes != 0 || lane / kQuadLanes >= quads) return;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    if ((one_head && r > 0) || most[r] == -kInfinity) continue;
    raise_to(to.at(sequence, rows.head[r]), most[r]);
  }
}

}  // namespace fa3::cuda
