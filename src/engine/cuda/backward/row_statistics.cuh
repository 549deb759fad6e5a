// SPDX-License-Identifier: Apache-2.0
// What a backward pass works out for each query row before its main kernel, and the sums that it
// takes. FlashAttention-2 and -3 call the kernel preprocess.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/unpack.cuh"
#include "engine/cuda/softmax/constants.h"
#include "engine/cuda/tile/rows.h"

namespace fa3::cuda {

inline constexpr int kVectorColumns = 8;  // of a 16-byte load

// A power of two, so that a row's lanes can add up by exchanging.
FA3_HD constexpr int lanes_per_row(int columns) {
  int lanes = 1;
  while (lanes * kVectorColumns < columns) lanes *= 2;
  return lanes;
}

__device__ __forceinline__ uint4 load_vector(const RowTensor& t, int64_t offset, bool exists) {
  if (!exists) return {};
  return __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(t.data) + offset));
}

template <Element E>
__device__ __forceinline__ float dot(const uint4& a, const uint4& b) {
  const uint32_t left[4] = {a.x, a.y, a.z, a.w};
  const uint32_t right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float left_low, left_high, right_low, right_high;
    unpack_pair<E>(left[i], left_low, left_high);
    unpack_pair<E>(right[i], right_low, right_high);
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

  // Tile: knows a row's place in the tensors.
  template <class Tile>
  __device__ __forceinline__ void load(const RowFloats& lses, const RowFloats& d_lses,
                                       const Tile& tile, int row) {
    lse = lses.data[tile.offset(lses.strides, row)];
    if (d_lses.data) d_lse = d_lses.data[tile.offset(d_lses.strides, row)];
  }

  __device__ __forceinline__ float lse_log2() const { return sees_nothing() ? 0.0f : lse * kLog2E; }
  // Where the LSE is -inf its gradient may be anything.
  __device__ __forceinline__ float delta(float product) const {
    return product - (sees_nothing() ? 0.0f : d_lse);
  }

  // Minus the row's part of the sink's gradient. A sink is a key without a value: its dP is zero.
  __device__ __forceinline__ float of_sink(float sink, float product) const {
    if (sees_nothing()) return 0.0f;
    const float weight = sink == lse ? 1.0f : ex2(-fabsf(sink - lse) * kLog2E);  // maybe infinite
    return weight * delta(product);
  }

 private:
  __device__ __forceinline__ bool sees_nothing() const { return lse == -__builtin_inff(); }
};

// The sum over the CTA, in thread 0, always in the same order.
template <int Threads>
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float of_warp[Threads / kWarpSize];
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

}  // namespace fa3::cuda
