// SPDX-License-Identifier: Apache-2.0
// Before the main kernel: for every query row Delta = rowsum(dO * O) - dLSE and the log-sum-exp in
// log2 units, and zeros for dQ to be summed on. One thread block a query block; limited by memory
// bandwidth, so every thread has all its loads in flight at once.
#pragma once

#include "engine/hopper/backward/backward_config.h"
#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/ptx/grid.cuh"
#include "engine/hopper/ptx/unpack.cuh"

namespace fa3::hopper {

inline constexpr int kPreprocessThreads = 256;
inline constexpr int kChunkColumns = 8;  // of a 16-byte load

// A power of two, so that a row's lanes can add up by exchanging.
FA3_HD constexpr int lanes_per_row(int columns) {
  int lanes = 1;
  while (lanes * kChunkColumns < columns) lanes *= 2;
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

// Of one row, by its first lane. A row that sees no key has weights 2^(-inf - 0) = 0; one past the
// end, 2^(-inf).
struct RowStatistics {
  float lse = __builtin_inff();
  float d_lse = 0.0f;

  __device__ __forceinline__ void load(const PreprocessParams& p, int batch, int head, int row) {
    lse = p.lse.data[p.lse.strides.offset(batch, head, row)];
    if (p.d_lse.data) d_lse = p.d_lse.data[p.d_lse.strides.offset(batch, head, row)];
  }

  __device__ __forceinline__ void write(const QueryScratch& scratch, int64_t at,
                                        float product) const {
    constexpr float kLog2E = 1.44269504088896340736f;
    scratch.lse_log2[at] = lse == -__builtin_inff() ? 0.0f : lse * kLog2E;
    scratch.delta[at] = product - d_lse;
  }
};

__device__ __forceinline__ uint4 load_chunk(const RowTensor& t, int64_t offset, bool exists) {
  if (!exists) return {};
  return __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(t.data) + offset));
}

template <BackwardConfig C>
__global__ void __launch_bounds__(kPreprocessThreads)
    preprocess_kernel(const __grid_constant__ PreprocessParams p) {
  ptx::griddepcontrol_launch_dependents();
  constexpr int kLanes = lanes_per_row(C.head_dim_v);
  constexpr int kRowsAtOnce = kPreprocessThreads / kLanes;
  constexpr int kPasses = C.block_m / kRowsAtOnce;
  static_assert(C.block_m % kRowsAtOnce == 0);
  // The last first, so that what the main kernel begins with is still in the L2 cache.
  const int64_t block = gridDim.x - 1 - blockIdx.x;
  const int m_block = int(block % p.scratch.q_blocks);
  const int head = int(block / p.scratch.q_blocks % p.scratch.heads);
  const int batch = int(block / p.scratch.q_blocks / p.scratch.heads);
  const int lane = threadIdx.x % kLanes;
  const int column = lane * kChunkColumns;
  const int first = threadIdx.x / kLanes;

  uint4 o[kPasses], d_o[kPasses];
  RowStatistics statistics[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int row = m_block * C.block_m + first + i * kRowsAtOnce;
    const bool exists = row < p.seqlen_q && column < p.o.columns;
    o[i] = load_chunk(p.o, p.o.strides.offset(batch, head, row) + column, exists);
    d_o[i] = load_chunk(p.d_o, p.d_o.strides.offset(batch, head, row) + column, exists);
    if (row < p.seqlen_q && lane == 0) statistics[i].load(p, batch, head, row);
  }

  if (p.scratch.turns && threadIdx.x == 0) p.scratch.turns[block] = 0;
  constexpr int kChunkFloats = C.dq_parts().chunk_floats();
  float4* const dq = reinterpret_cast<float4*>(p.scratch.dq_sum + block * kChunkFloats);
#pragma unroll
  for (int i = threadIdx.x; i < kChunkFloats / 4; i += kPreprocessThreads) dq[i] = {};

#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    float product = dot<C.element>(o[i], d_o[i]);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      product += __shfl_xor_sync(0xffffffff, product, distance);
    }
    if (lane == 0) {
      statistics[i].write(p.scratch, block * C.block_m + first + i * kRowsAtOnce, product);
    }
  }
}

}  // namespace fa3::hopper
