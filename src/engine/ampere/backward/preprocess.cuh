// SPDX-License-Identifier: Apache-2.0
// Before the main kernel: for every query row Delta = rowsum(dO * O) - dLSE and the log-sum-exp in
// log2 units, and zeros where dQ is summed; for every CTA its part of the sinks' gradient. Limited
// by memory bandwidth, so every thread has all its loads in flight at once.
#pragma once

#include "engine/ampere/backward/row_block.h"
#include "engine/cuda/backward/row_statistics.cuh"

namespace fa3::ampere {

// Eight neighbours of a row, of which `count` exist; the others are zeros.
__device__ __forceinline__ uint4 load_row_vector(const RowTensor& t, int64_t offset, int count,
                                                 bool whole_vectors) {
  if (whole_vectors) return load_vector(t, offset, count > 0);
  const uint16_t* const from = static_cast<const uint16_t*>(t.data) + offset;
  uint32_t vector[kVectorColumns / 2];
#pragma unroll
  for (int i = 0; i < kVectorColumns / 2; ++i) {
    const uint32_t low = 2 * i < count ? from[2 * i] : 0;
    const uint32_t high = 2 * i + 1 < count ? from[2 * i + 1] : 0;
    vector[i] = low | high << 16;
  }
  return {vector[0], vector[1], vector[2], vector[3]};
}

// The CTA's block of rows. The last first: then the L2 cache still has what the main kernel begins
// with.
__device__ __forceinline__ int preprocess_number() {
  return int(gridDim.x - 1 - blockIdx.x);
}

// `Lanes` share a row of O: lanes_per_row() of its columns. see(row, column, o, d_o, product) is
// called for each vector, `product`: rowsum(dO * O).
template <Element E, int Lanes, class See>
__device__ __forceinline__ void preprocess(const PreprocessParams& p, int number,
                                           const RowBlock& rows, const See& see) {
  constexpr int kRowsAtOnce = kPreprocessThreads / Lanes;
  constexpr int kPasses = kPreprocessRows / kRowsAtOnce;
  const int lane = int(threadIdx.x) % Lanes, column = lane * kVectorColumns;
  const int first_row = rows.block * kPreprocessRows;
  const int own_row = first_row + int(threadIdx.x) / Lanes;
  const int padded = (rows.used + p.block_m - 1) / p.block_m * p.block_m;

  uint4 o[kPasses], d_o[kPasses];
  RowStatistics statistics[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int row = own_row + i * kRowsAtOnce;
    const int count = row < rows.used ? p.o.columns - column : 0;
    o[i] = load_row_vector(p.o, rows.offset(p.o.strides, row) + column, count, p.whole_vectors);
    d_o[i] =
        load_row_vector(p.d_o, rows.offset(p.d_o.strides, row) + column, count, p.whole_vectors);
    if (row < rows.used && lane == 0) statistics[i].load(p.lse, p.d_lse, rows, row);
  }

  const QueryScratch& scratch = p.rows.scratch;
  const ScratchPlace place = scratch_place(p.rows, rows.sequence, rows.begin, p.block_m);
  const int64_t scratch_row = scratch.numbers.block(place, rows.head, 0) * p.block_m;
  const int rows_here = min(kPreprocessRows, padded - first_row);
  float4* const dq =
      reinterpret_cast<float4*>(scratch.dq_accum + (scratch_row + first_row) * p.head_dim);
  for (int i = int(threadIdx.x); i < rows_here * (p.head_dim / 4); i += kPreprocessThreads) {
    dq[i] = {};
  }

  float of_sink = 0.0f;
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    float product = dot<E>(o[i], d_o[i]);
#pragma unroll
    for (int distance = Lanes / 2; distance > 0; distance /= 2) {
      product += __shfl_xor_sync(0xffffffff, product, distance);
    }
    const int row = own_row + i * kRowsAtOnce;
    see(row, column, o[i], d_o[i], product);
    if (lane == 0 && row < padded) {
      scratch.lse_log2[scratch_row + row] = statistics[i].lse_log2();
      scratch.delta[scratch_row + row] = statistics[i].delta(product);
      if (p.sink && row < rows.used) of_sink += statistics[i].of_sink(p.sink[rows.head], product);
    }
  }
  if (p.sink) {
    of_sink = block_sum<kPreprocessThreads>(of_sink);
    if (threadIdx.x == 0) p.sink_sums[number] = of_sink;
  }
}

template <Element E, int Lanes>
__global__ void __launch_bounds__(kPreprocessThreads)
    preprocess_kernel(const __grid_constant__ PreprocessParams p) {
  const int number = preprocess_number();
  preprocess<E, Lanes>(p, number, RowBlock::of(p.grid, number), [](auto&&...) {});
}

}  // namespace fa3::ampere
