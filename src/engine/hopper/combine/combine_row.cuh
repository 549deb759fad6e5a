// SPDX-License-Identifier: Apache-2.0
// Rows of a split tile, combined from its splits: weights from their sums of P, then the weighted
// sum. Many splits or rows are loaded at once: a combine mostly waits. The order of the
// sums depends on how many splits there are and how many were expected. Next: combine_kernel.cu,
// combine_last.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/softmax/softmax.cuh"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {

using namespace cuda;

inline constexpr int kLaneColumns = 4;
inline constexpr int kCombinedColumns = kLaneColumns * kWarpSize;  // of a pass

// A partial sum of a row: its reference (base 2), and relative to that the sum of P and the
// columns of P V of a lane.
struct CombinedSum {
  float ref = -kInfinity;
  float sum = 0;
  float4 columns{};

  // The reference becomes `to`, if that is larger.
  __device__ __forceinline__ void raise(float to) {
    const float raised = fmaxf(ref, to);
    const float factor = raised == -kInfinity ? 0.0f : ex2(ref - raised);
    ref = raised;
    sum *= factor;
    columns = {columns.x * factor, columns.y * factor, columns.z * factor, columns.w * factor};
  }
  // Adds other splits that have the same reference.
  __device__ __forceinline__ void join(const CombinedSum& other) {
    sum += other.sum;
    columns = {columns.x + other.columns.x, columns.y + other.columns.y,
               columns.z + other.columns.z, columns.w + other.columns.w};
  }
  // A split without keys counts for nothing, whatever its O holds; a NaN counts.
  __device__ __forceinline__ void add(const PartialSum& split, const float4& o) {
    const float weight = split.sum == 0 ? 0.0f : split.sum * ex2(split.ref - ref);
    if (weight == 0) return;
    sum += weight;
    columns.x += weight * o.x, columns.y += weight * o.y;
    columns.z += weight * o.z, columns.w += weight * o.w;
  }
  // Adds weights with the reference `from` that sum to `weights`. `o`, their weighted columns, may
  // hold anything if there are none. A NaN counts. Without a branch, since one warp adds up many.
  __device__ __forceinline__ void add_weighted(float from, float weights, const float4& o) {
    const bool counts = weights != 0;
    const float weight = !counts ? 0.0f : ref == -kInfinity ? 1.0f : ex2(from - ref);
    const auto part = [&](float x) { return counts ? x : 0.0f; };
    sum = __fmaf_rn(weight, weights, sum);
    columns = {__fmaf_rn(weight, part(o.x), columns.x), __fmaf_rn(weight, part(o.y), columns.y),
               __fmaf_rn(weight, part(o.z), columns.z), __fmaf_rn(weight, part(o.w), columns.w)};
  }

  __device__ __forceinline__ CombinedSum times(float factor) const {
    return {
        ref, sum, {columns.x * factor, columns.y * factor, columns.z * factor, columns.w * factor}};
  }
  // Columns of O; zeros where there are no weights.
  __device__ __forceinline__ float4 normalised() const {
    return times(sum == 0 ? 0.0f : 1 / sum).columns;
  }
};

// Without keys where the condition does not hold.
__device__ __forceinline__ PartialSum load_partial_sum(bool condition, const PartialSum* pointer) {
  const float2 found =
      load_global_or(condition, reinterpret_cast<const float2*>(pointer), float2{-kInfinity, 0});
  return {found.x, found.y};
}

// Adds up splits first_split, first_split + Warps, ... of rows row, row + step, ...: four columns
// of each. `Together` splits of every row are loaded before any is used.
template <int Rows, int Together, int Warps = 1>
__device__ __forceinline__ void add_splits(CombinedSum (&sums)[Rows], const PartialOutput& partials,
                                           const CombineTile& combine, int row, int step,
                                           int first_split, int column) {
  const bool has_columns = column < partials.columns;
#pragma unroll 1
  for (int first = first_split; first < combine.num_splits; first += Together * Warps) {
    PartialSum split_sums[Rows][Together];
    float4 o[Rows][Together];
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int j = 0; j < Together; ++j) {
        const int split = first + j * Warps, tile_row = row + r * step;
        const bool exists = split < combine.num_splits && tile_row < partials.rows;
        const int64_t at = partials.row(combine.partial(split), tile_row);
        split_sums[r][j] = load_partial_sum(exists, partials.sums + at);
        load_global_if(exists && has_columns, partials.o + at * partials.columns + column, o[r][j]);
      }
    }
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      float most = split_sums[r][0].ref;
#pragma unroll
      for (int j = 1; j < Together; ++j) most = fmaxf(most, split_sums[r][j].ref);
      sums[r].raise(most);
#pragma unroll
      for (int j = 0; j < Together; ++j) sums[r].add(split_sums[r][j], o[r][j]);
    }
  }
}

// Four columns, or as many as the tensor has left.
template <class Number, class Vector>
__device__ __forceinline__ void store_columns(Number* to, const Vector& four, int columns) {
  static_assert(sizeof(Vector) == kLaneColumns * sizeof(Number));
  if (columns >= kLaneColumns) {
    *reinterpret_cast<Vector*>(to) = four;
    return;
  }
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    if (i < columns) to[i] = reinterpret_cast<const Number*>(&four)[i];
  }
}

// Where a combined row goes.
struct RowPlace {
  int batch, head, row;
};

template <Element E, bool AnyRows>
__device__ __forceinline__ void store_combined(const ForwardOutput& to, const RowPlace& place,
                                               int column, const CombinedSum& total) {
  const float4 all = total.normalised();
  const RowTensor& o = to.o;
  const int64_t at = o.strides.offset(place.batch, place.head, place.row) + column;
  const int columns = AnyRows ? o.columns - column : kLaneColumns;  // left of the tensor
  if (AnyRows && to.o_is_float32) {
    store_columns(static_cast<float*>(o.data) + at, all, columns);
  } else {
    const uint2 packed = {pack_pair<E>(all.x, all.y), pack_pair<E>(all.z, all.w)};
    store_columns(static_cast<uint16_t*>(o.data) + at, packed, columns);
  }
}

// By one lane. A sink may be finite and infinite in log2 units.
__device__ __forceinline__ void store_combined_lse(const RowFloats& lse, const RowPlace& place,
                                                   const CombinedSum& total, float sink) {
  if (lse.data == nullptr) return;
  const bool sink_rules = sink * kLog2E == kInfinity;
  lse.data[lse.strides.offset(place.batch, place.head, place.row)] =
      total.sum == 0 ? -kInfinity
      : sink_rules   ? sink + log2f(total.sum) * kLn2
                     : (total.ref + log2f(total.sum)) * kLn2;
}

// A sink is one more split, without a value. One that is infinite in log2 units is all there is.
__device__ __forceinline__ void add_sink(CombinedSum& total, float sink) {
  const float to = sink * kLog2E;
  total.raise(to);
  if (to == kInfinity) {
    total.sum += 1;
  } else {
    total.add({to, 1}, {});
  }
}

// Rows without a gate stay as they are.
struct NoGate {
  __device__ __forceinline__ void multiply(CombinedSum&, const RowPlace&, int) const {}
};

// Stores a lane's columns of a row. AnyRows: O may be float32, or its rows end anywhere.
template <Element E, bool AnyRows, class Gate = NoGate>
__device__ __forceinline__ void finish_row(CombinedSum& total, const ForwardOutput& to,
                                           const CombineTile& combine, int row, int column,
                                           const Gate& gate = {}) {
  const int packed_row = combine.first_row + row, query = to.pack.query(packed_row);
  if (query >= combine.queries.count) return;
  const int head = to.pack.head(combine.queries.pack, packed_row);
  const bool has_sink = to.sink != nullptr && query < combine.queries.used;
  const float sink = has_sink ? to.sink[head] : -kInfinity;
  if (has_sink) add_sink(total, sink);
  const RowPlace place{combine.queries.batch, head, combine.queries.begin + query};
  gate.multiply(total, place, column);
  if (column < to.o.columns) store_combined<E, AnyRows>(to, place, column, total);
  if (column == 0) store_combined_lse(to.lse, place, total, sink);
}

}  // namespace fa3::hopper
