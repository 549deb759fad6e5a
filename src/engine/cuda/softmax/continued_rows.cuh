// SPDX-License-Identifier: Apache-2.0
// The epilogue of kernels that go on from a result over other keys: the rows of both, before they
// are stored, so that no kernel reads and writes them again. With L the log-sum-exps,
//
//   O = O_here / (1 + 2^(L_before - L_here)) + O_before / (1 + 2^(L_here - L_before)).
//
// o and lse may be the tensors that hold what was before: a thread reads the elements that it
// writes, and a quad's lanes have all read the LSE before one of them writes it.
#pragma once

#include "engine/cuda/softmax/epilogue.cuh"

namespace fa3::cuda {

// What a row and the one before count in the row of both.
struct RowWeights {
  float here;
  float before;
  float lse;  // of both, natural
};

// `lse_here`: to base 2; `lse_before`: natural. -inf: no keys, and then O may be anything.
__device__ __forceinline__ RowWeights weights_of(float lse_here, float lse_before) {
  const float before = lse_before * kLog2E;
  // Equal ones share the row, also where both are infinite.
  const float distance = lse_here == before ? 0.0f : lse_here - before;
  const float smaller = ex2(-fabsf(distance)), larger = rcp(1 + smaller);
  const bool rules = distance >= 0;
  RowWeights weights{rules ? larger : smaller * larger, rules ? smaller * larger : larger,
                     (fmaxf(lse_here, before) + lg2(1 + smaller)) * kLn2};
  if (lse_here == -kInfinity) weights = {0, 1, lse_before};  // what was before, to the last bit
  if (lse_before == -kInfinity) weights = {1, 0, lse_here * kLn2};
  return weights;
}

// Adds a lane's numbers of a row of the result before, times `weight`. `row`: the lane's first;
// `columns`: the tensor's from there on, or 0.
template <int Count>
__device__ __forceinline__ void add_row_before(float (&output)[Count], int r, const float* row,
                                               int columns, float weight, bool pairs) {
#pragma unroll
  for (int i = 2 * r; i < Count; i += 4) {
    const int column = fragment_column(i);
    float2 before = {0, 0};
    if (pairs && column + 1 < columns) {
      before = *reinterpret_cast<const float2*>(row + column);
    } else {
      if (column < columns) before.x = row[column];
      if (column + 1 < columns) before.y = row[column + 1];
    }
    output[i] += before.x * weight;
    output[i + 1] += before.y * weight;
  }
}

// As store_rows(), for kernels that write whole copies of 16 bytes and have no sinks. General: some
// rows may be unused; these keep what was before.
template <Element E, int TopLog2, bool General, int Count>
__device__ __forceinline__ void store_continued_rows(const ForwardOutput& to,
                                                     const PartialInput& before,
                                                     const QueryRows& queries, int first_row,
                                                     float (&output)[Count],
                                                     const RowState& state) {
  const LaneRows rows(to.pack, queries, first_row, thread_in_block());
  const int lane_column = fragment_lane_column(int(thread_in_block()));
  float lse[kRowsPerThread];
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    float sum = quad_sum(state.sum[r]), ref = state.ref[r];
    if (General && !rows.used[r]) ref = -kInfinity, sum = 0;
    const bool sees_none = ref == -kInfinity && sum == sum;  // a NaN sum: it does see keys
    const bool goes_on = before.o.data && rows.exists[r];
    const float lse_before =
        goes_on
            ? before.lse.data[before.lse.strides.offset(queries.batch, rows.head[r], rows.row[r])]
            : -kInfinity;
    const RowWeights weights =
        weights_of(sees_none ? -kInfinity : log_sum<TopLog2>(ref, sum), lse_before);
    lse[r] = weights.lse;
    const float factor = weights.here * inverse_of(sum);
#pragma unroll
    for (int i = 2 * r; i < Count; i += 4) {  // hidden values may be infinite
      output[i] = sees_none ? 0.0f : output[i] * factor;
      output[i + 1] = sees_none ? 0.0f : output[i + 1] * factor;
    }
    if (weights.before != 0 && goes_on) {
      const float* const row = static_cast<const float*>(before.o.data) +
                               before.o.strides.offset(queries.batch, rows.head[r], rows.row[r]) +
                               lane_column;
      add_row_before(output, r, row, before.o.columns - lane_column, weights.before, before.pairs);
    }
  }
  __syncwarp();
  const bool stores_lse = to.lse.data && thread_in_block() % kQuadLanes == 0;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    store_global_if(stores_lse && rows.exists[r],
                    to.lse.data + to.lse.strides.offset(queries.batch, rows.head[r], rows.row[r]),
                    lse[r]);
  }
  if (!to.o_is_float32) {
    store_output<E, false>(LaneOutput(to.o, queries.batch, rows), output, {1, 1});
    return;
  }
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    float* const row = static_cast<float*>(to.o.data) +
                       to.o.strides.offset(queries.batch, rows.head[r], rows.row[r]) + lane_column;
    store_floats<false>(row, rows.exists[r] ? to.o.columns - lane_column : 0, output, r, 1.0f);
  }
}

}  // namespace fa3::cuda
