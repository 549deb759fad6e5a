// SPDX-License-Identifier: Apache-2.0
// Before the main kernel: for every query row Delta = rowsum(dO * O) - dLSE and the log-sum-exp in
// log2 units, and zeros where dQ is summed; for every query block its part of the sink's gradient.
// A CTA for each query block. Limited by memory bandwidth, so every thread has all its loads in
// flight at once.
#pragma once

#include "engine/cuda/backward/row_statistics.cuh"
#include "engine/hopper/backward/row_tile.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

// Calls use(row of the block, statistics, dO O) in the first lane of each row, and `meanwhile` once
// all loads are in flight. For a CTA of `Threads` threads.
template <BackwardConfig C, int Threads, class Tile, class Meanwhile, class Use>
__device__ __forceinline__ void for_each_row(const RowOperands& p, const Tile& tile,
                                             Meanwhile meanwhile, Use use) {
  const int thread = int(threadIdx.x);
  constexpr int kLanes = lanes_per_row(C.shape.head_dim_v);
  constexpr int kRowsAtOnce = Threads / kLanes;
  constexpr int kPasses = C.shape.block_m / kRowsAtOnce;
  static_assert(C.shape.block_m % kRowsAtOnce == 0);
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
    if (row < tile.used && lane == 0) statistics[i].load(p.lse, p.d_lse, tile, row);
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
        p.scratch.lse_log2[tile.block * C.shape.block_m + row] = statistics.lse_log2();
        p.scratch.delta[tile.block * C.shape.block_m + row] = statistics.delta(product);
        if (C.general() && p.sink) of_sink += statistics.of_sink(p.sink[tile.head], product);
      });
  if (C.general() && p.sink) {
    of_sink = block_sum<kPreprocessThreads>(of_sink);
    if (threadIdx.x == 0) p.sink_sums[tile.block] = of_sink;
  }
}

}  // namespace fa3::hopper
