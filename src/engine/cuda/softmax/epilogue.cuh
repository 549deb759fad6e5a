// SPDX-License-Identifier: Apache-2.0
// From accumulators straight to global memory, one warp and its 16 rows at a time: normalise, pack,
// trade columns within quads, store; and the log-sum-exp. Shared memory is left to loads, and no
// other warp is waited for.
#pragma once

#include "engine/cuda/ptx/quad.cuh"
#include "engine/cuda/softmax/softmax.cuh"
#include "engine/cuda/tile/rows.h"

namespace fa3::cuda {

// Where a lane's stores go: to 8 of each 32 columns of its two rows.
struct LaneOutput {
  static constexpr int kColumns = 8;
  static constexpr int kStride = kColumns * kQuadLanes;

  uint16_t* row[kRowsPerThread];
  bool row_exists[kRowsPerThread];
  int columns_left;  // in the tensor, from the lane's first column on
  bool aligned;      // rows begin at multiples of 16 bytes

  __device__ __forceinline__ LaneOutput(const RowTensor& o, int batch, const LaneRows& rows,
                                        bool is_aligned = true)
      : aligned(is_aligned) {
    const int lane_column = int(thread_in_block() % kQuadLanes) * kColumns;
    columns_left = o.columns - lane_column;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      row[r] = o.at(batch, rows.head[r], rows.row[r]) + lane_column;
      row_exists[r] = rows.exists[r];
    }
  }

  // Tails: the tensor may end within the 8 columns, or its rows begin anywhere.
  template <bool Tails>
  __device__ __forceinline__ void store(int r, int column, const uint32_t (&packed)[4]) const {
    constexpr int kReach = Tails ? kColumns - 1 : 0;
    const bool at_once = column + kReach < columns_left && aligned;
    store_global_if(row_exists[r] && at_once, row[r] + column, packed);
    if constexpr (Tails) {
      if (!row_exists[r] || at_once) return;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (aligned && i == kColumns - 1) break;  // not all 8 are in the tensor
        const auto bits = uint16_t(packed[i / 2] >> (16 * (i % 2)));
        if (column + i < columns_left) row[r][column + i] = bits;
      }
    }
  }
};

// Finite for a row without P (all its scores are -inf), which has an O of 0. A NaN sum needs no
// care: O is NaN by then.
__device__ __forceinline__ float inverse_of(float sum) {
  constexpr float kLeast = 0x1p-126f;
  return rcp(fmaxf(sum, kLeast));
}

// The four lanes of a quad hold 2 of each 8 columns; traded among them, each lane has 8 columns in
// a row, one 16-byte store. Exchanges queue behind stores, so the stores come two groups at a time.
template <Element E, bool Tails, int Count>
__device__ __forceinline__ void store_output(const LaneOutput& lane_output,
                                             const float (&output)[Count],
                                             const float (&sum)[kRowsPerThread]) {
  const float inverse[kRowsPerThread] = {inverse_of(sum[0]), inverse_of(sum[1])};
  constexpr int kGroups = Count * 2 / LaneOutput::kStride;
  static_assert(Count * 2 % LaneOutput::kStride == 0);
  uint32_t packed[kGroups][kRowsPerThread][kQuadLanes];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
#pragma unroll
      for (int j = 0; j < kQuadLanes; ++j) {
        const int i = group * LaneOutput::kStride / 2 + 4 * j + 2 * r;
        packed[group][r][j] = pack_pair<E>(output[i] * inverse[r], output[i + 1] * inverse[r]);
      }
      transpose_in_quad(packed[group][r]);
    }
    if (group % 2 == 0 && group + 1 < kGroups) continue;
#pragma unroll
    for (int done = group / 2 * 2; done <= group; ++done) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        lane_output.store<Tails>(r, done * LaneOutput::kStride, packed[done][r]);
      }
    }
  }
}

// Stores a lane's numbers of its row r in float32: 2 of each 8 columns. `o`: the lane's first
// number in that row; `columns`: the tensor's from there on, or 0; even, unless there are tails.
// Pairs are aligned, or numbers are stored one by one.
template <bool Tails, int Count>
__device__ __forceinline__ void store_floats(float* o, int columns, const float (&output)[Count],
                                             int r, float factor, bool pairs = true) {
#pragma unroll
  for (int i = 2 * r; i < Count; i += 4) {
    const int column = fragment_column(i);
    const float first = output[i] * factor, second = output[i + 1] * factor;
    const bool both = column + Tails < columns && pairs;
    store_global_if(both, o + column, first, second);
    if constexpr (Tails) {
      store_global_if(!both && column < columns, o + column, first);
      if (!pairs) store_global_if(column + 1 < columns, o + column + 1, second);
    }
  }
}

// Does what store_output() and clear_rows_without_keys() do, in one.
template <int Count>
__device__ __forceinline__ void store_float_output(const RowTensor& o, int batch,
                                                   const LaneRows& rows, float (&output)[Count],
                                                   const float (&ref)[kRowsPerThread],
                                                   const float (&sum)[kRowsPerThread],
                                                   bool pairs = true) {
  const int lane_column = fragment_lane_column(int(thread_in_block()));
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    if (ref[r] == -kInfinity && sum[r] == sum[r]) {  // a NaN sum: it does see keys
#pragma unroll
      for (int i = 2 * r; i < Count; i += 4) output[i] = output[i + 1] = 0;
    }
    float* const row = static_cast<float*>(o.data) +
                       o.strides.offset(batch, rows.head[r], rows.row[r]) + lane_column;
    store_floats<true>(row, rows.exists[r] ? o.columns - lane_column : 0, output, r,
                       inverse_of(sum[r]), pairs);
  }
}

// Rows without keys are zero, even where a hidden V was Inf or NaN: written again.
template <int Columns, bool Tails>
__device__ __forceinline__ void clear_rows_without_keys(const LaneOutput& lane_output,
                                                        const float (&ref)[kRowsPerThread]) {
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    if (ref[r] != -kInfinity) continue;
#pragma unroll 1
    for (int column = 0; column < Columns; column += LaneOutput::kStride) {
      lane_output.store<Tails>(r, column, {});
    }
  }
}

// TopLog2, here and below: where P begin (Score::kTopLog2).
//
// Without branches and before the output: its long address arithmetic fills the exchanges' waits.
template <int TopLog2>
__device__ __forceinline__ void store_lse(const RowFloats& lse, int batch, const LaneRows& rows,
                                          const float (&ref)[kRowsPerThread],
                                          const float (&sum)[kRowsPerThread]) {
  const bool stores = lse.data && thread_in_block() % kQuadLanes == 0;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    // A row without P has sum 0, so -inf comes out.
    store_global_if(stores && rows.exists[r],
                    lse.data + lse.strides.offset(batch, rows.head[r], rows.row[r]),
                    log_sum<TopLog2>(ref[r], sum[r]) * kLn2);
  }
}

// A sink is one more key of its head, without a value: it joins sum and LSE. If it is above all
// scores the LSE is computed relative to it; its part of the sum may overflow then, and O is zero.
template <int TopLog2>
__device__ __forceinline__ void add_sinks_and_store_lse(const ForwardOutput& to, int batch,
                                                        const LaneRows& rows,
                                                        const float (&ref)[kRowsPerThread],
                                                        float (&sum)[kRowsPerThread]) {
  const bool stores = to.lse.data && thread_in_block() % kQuadLanes == 0;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const float sink = rows.used[r] ? to.sink[rows.head[r]] : -kInfinity;
    const bool rules = sink * kLog2E > ref[r];
    const float smaller = sink == -kInfinity ? 0.0f : ex2(-fabsf(ref[r] - sink * kLog2E));
    const float lse = rules ? sink + lg2(1 + sum[r] * smaller) * kLn2
                            : log_sum<TopLog2>(ref[r], sum[r] + smaller) * kLn2;
    sum[r] += rules ? rcp(smaller) : smaller;
    store_global_if(stores && rows.exists[r],
                    to.lse.data + to.lse.strides.offset(batch, rows.head[r], rows.row[r]), lse);
  }
}

// What is left to do to O because of V's encoding: nothing, where V stands for itself.
struct PlainValues {
  template <int Count>
  __device__ __forceinline__ void restore(float (&)[Count], const float (&)[2]) const {}
};

// Stores the 16 rows of a warp, the first of which is `first_row` of its sequence. General: for
// kernels with sinks and unused rows. AnyRows: also with O in float32, or with rows that end within
// 16 bytes. AnyAddress: or begin there.
template <Element E, int TopLog2 = 0, bool General = false, bool AnyRows = false,
          bool AnyAddress = false, int Count, class Values = PlainValues>
__device__ __forceinline__ void store_rows(const ForwardOutput& to, const QueryRows& queries,
                                           int first_row, float (&output)[Count],
                                           const RowState& state, const Values& values = {}) {
  float sum[kRowsPerThread] = {quad_sum(state.sum[0]), quad_sum(state.sum[1])};
  values.restore(output, sum);
  float ref[kRowsPerThread] = {state.ref[0], state.ref[1]};
  const LaneRows rows(to.pack, queries, first_row, thread_in_block());
  if constexpr (General) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      if (!rows.used[r]) ref[r] = -kInfinity, sum[r] = 0;
    }
  }
  if (General && to.sink) {
    add_sinks_and_store_lse<TopLog2>(to, queries.batch, rows, ref, sum);
  } else {
    store_lse<TopLog2>(to.lse, queries.batch, rows, ref, sum);
  }
  if constexpr (AnyRows) {
    if (to.o_is_float32) {
      store_float_output(to.o, queries.batch, rows, output, ref, sum,
                         !AnyAddress || to.o_is_aligned);
      return;
    }
  }
  static_assert(AnyRows || !AnyAddress);
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    if (sum[r] != sum[r]) ref[r] = 0;  // its scores are NaN: it does see keys
  }
  const LaneOutput lane_output(to.o, queries.batch, rows, !AnyAddress || to.o_is_aligned);
  store_output<E, AnyRows>(lane_output, output, sum);
  if (to.some_rows_see_no_key) clear_rows_without_keys<Count * 2, AnyRows>(lane_output, ref);
}

}  // namespace fa3::cuda
