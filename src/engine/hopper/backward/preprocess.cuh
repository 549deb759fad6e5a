// SPDX-License-Identifier: Apache-2.0
// Before the main kernel: for every query row Delta = rowsum(dO * O) - dLSE and the log-sum-exp in
// log2 units, and zeros where dQ is summed; for every query block its part of the sink's gradient.
// A CTA for each query block. Limited by memory bandwidth, so every thread has all its loads in
// flight at once.
#pragma once

#include "engine/cuda/instructions.cuh"
#include "engine/hopper/backward/row_tile.cuh"
#include "engine/hopper/ptx/grid.cuh"
#include "engine/hopper/ptx/unpack.cuh"

namespace fa3::hopper {

inline constexpr int kVectorColumns = 8;  // of a 16-byte load

// A power of two, so that a row's lanes can add up by exchanging.
FA3_HD constexpr int lanes_per_row(int columns) {
  int lanes = 1;
  while (lanes * kVectorColumns < columns) lanes *= 2;
  return lanes;
}

template <Element E>
__device__ __forceinline__ float dot(const uint4& a, const uint4& b) {
  const uint32_t left[4] = {a.x, a.y, a.z, a.w};
  const uint32_t right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float left_low, left_high, right_low, right_high;
    ptx::unpack_pair<E>(left[i], left_low, left_high);
    ptx::unpack_pair<E>(right[i], right_low, right_high);
    sum = __fmaf_rn(left_low, right_low, sum);
    sum = __fmaf_rn(left_high, right_high, sum);
  }
  return sum;
}

// A row's statistics, in its first lane. A row that sees no key has P = 2^(-inf - 0) = 0; a row
// past the end, 2^(-inf).
struct RowStatistics {
  float lse = __builtin_inff();
  float d_lse = 0.0f;

  __device__ __forceinline__ void load(const RowOperands& p, const RowTile& tile, int row) {
    lse = p.lse.data[tile.offset(p.lse.strides, row)];
    if (p.d_lse.data) d_lse = p.d_lse.data[tile.offset(p.d_lse.strides, row)];
  }

  __device__ __forceinline__ float lse_log2() const { return sees_nothing() ? 0.0f : lse * kLog2E; }
  // Where the LSE is -inf its gradient may be anything.
  __device__ __forceinline__ float delta(float product) const {
    return product - (sees_nothing() ? 0.0f : d_lse);
  }

  // Minus the row's part of the sink's gradient. A sink is a key without a value: its dP is zero.
  __device__ __forceinline__ float of_sink(float sink, float product) const {
    if (sees_nothing()) return 0.0f;
    const float weight = sink == lse ? 1.0f : ex2((sink - lse) * kLog2E);  // both may be infinite
    return weight * delta(product);
  }

 private:
  static constexpr float kLog2E = 1.44269504088896340736f;
  __device__ __forceinline__ bool sees_nothing() const { return lse == -__builtin_inff(); }
};

// The sum over the CTA, in thread 0, always in the same order.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float of_warp[kPreprocessThreads / kWarpSize];
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, distance);
  }
  if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  float sum = 0.0f;
  for (float part : of_warp) sum += part;
  return sum;
}

__device__ __forceinline__ uint4 load_vector(const RowTensor& t, int64_t offset, bool exists) {
  if (!exists) return {};
  return __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(t.data) + offset));
}

// Calls use(row of the block, statistics, dO O) in the first lane of each row, and `meanwhile` once
// all loads are in flight. For a CTA of `Threads` threads.
template <BackwardConfig C, int Threads, class Meanwhile, class Use>
__device__ __forceinline__ void for_each_row(const RowOperands& p, const RowTile& tile,
                                             Meanwhile meanwhile, Use use) {
  const int thread = int(threadIdx.x);
  constexpr int kLanes = lanes_per_row(C.head_dim_v);
  constexpr int kRowsAtOnce = Threads / kLanes;
  constexpr int kPasses = C.block_m / kRowsAtOnce;
  static_assert(C.block_m % kRowsAtOnce == 0);
  const int lane = thread % kLanes;
  const int column = lane * kVectorColumns;
  const int first = thread / kLanes;

  uint4 o[kPasses], d_o[kPasses];
  RowStatistics statistics[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int row = tile.first_row + first + i * kRowsAtOnce;
    const bool exists = row < tile.used && column < p.o.columns;
    o[i] = load_vector(p.o, tile.offset(p.o.strides, row) + column, exists);
    d_o[i] = load_vector(p.d_o, tile.offset(p.d_o.strides, row) + column, exists);
    if (row < tile.used && lane == 0) statistics[i].load(p, tile, row);
  }
  meanwhile();
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    float product = dot<C.element>(o[i], d_o[i]);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      product += __shfl_xor_sync(0xffffffff, product, distance);
    }
    if (lane == 0) use(first + i * kRowsAtOnce, statistics[i], product);
  }
}

template <BackwardConfig C>
__device__ __forceinline__ void clear_sums(const QueryScratch& scratch, const RowTile& tile) {
  if (scratch.dq_semaphore && threadIdx.x == 0) scratch.dq_semaphore[tile.block] = 0;
  constexpr int kFloats = C.dq_accum().block_floats();
  float4* const dq = reinterpret_cast<float4*>(scratch.dq_accum + tile.block * kFloats);
#pragma unroll
  for (int i = threadIdx.x; i < kFloats / 4; i += kPreprocessThreads) {
    const int part = i / (C.dq_accum().part_floats() / 4);
    if (!C.general() || C.dq_accum().first_row_of_warp(part, i) < tile.used - tile.first_row) {
      dq[i] = {};
    }
  }
}

template <BackwardConfig C>
__global__ void __launch_bounds__(kPreprocessThreads)
    preprocess_kernel(const __grid_constant__ PreprocessParams p) {
  ptx::griddepcontrol_launch_dependents();
  // The last first: then the L2 cache still has what the main kernel begins with.
  const RowTile tile = row_tile<C>(p.tiles, gridDim.x - 1 - blockIdx.x);
  if (C.general() && tile.block < 0) return;
  float of_sink = 0.0f;
  for_each_row<C, kPreprocessThreads>(
      p.rows, tile, [&] { clear_sums<C>(p.scratch, tile); },
      [&](int row, const RowStatistics& statistics, float product) {
        p.scratch.lse_log2[tile.block * C.block_m + row] = statistics.lse_log2();
        p.scratch.delta[tile.block * C.block_m + row] = statistics.delta(product);
        if (C.general() && p.sink) of_sink += statistics.of_sink(p.sink[tile.head], product);
      });
  if (C.general() && p.sink) {
    of_sink = block_sum(of_sink);
    if (threadIdx.x == 0) p.sink_sums[tile.block] = of_sink;
  }
}

}  // namespace fa3::hopper
