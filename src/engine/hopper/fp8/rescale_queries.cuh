// SPDX-License-Identifier: Apache-2.0
// Queries of bf16 over a quantized cache become fp16, as its keys and values do
// (dequantize_keys.cuh): e4m3 takes one instruction to become fp16, and four to become bf16. fp16
// reaches from 2^-24 to 2^16 only, so each row is multiplied by a power of two that brings its
// largest number into [2^14, 2^15); the row's products are divided by it in their scale. What that
// rounds is 2^28 times smaller than the row's largest number. A warp does this in place, to its own
// rows of Q. Next: forward/consumer/consumer.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/config/kernel.h"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/unpack.cuh"

namespace fa3::hopper {

// The power of two that a row is multiplied by, from its largest number.
struct RowRescale {
  uint32_t exponent;  // of the largest number; of a row of nearly nothing it is taken to be more

  // The size of the larger number of a pair as the upper half of a float, and whatever came before.
  static __device__ __forceinline__ uint32_t larger(uint32_t size, uint32_t pair) {
    return max(size, max(pair << 16 & kSize, pair & kSize));
  }
  static __device__ __forceinline__ RowRescale of(uint32_t size) {
    return {max(size >> kMantissa, kLeast)};
  }
  // Infinity and NaN stay what they are.
  __device__ __forceinline__ uint32_t applied(uint32_t pair) const {
    const float factor = __uint_as_float((2 * kBias + kTop - exponent) << kMantissa);
    float low, high;
    ptx::unpack_pair<Element::kBf16>(pair, low, high);
    return pack_pair<Element::kFp16>(low * factor, high * factor);
  }
  // What products must be multiplied by.
  __device__ __forceinline__ float inverse() const {
    return __uint_as_float((exponent - kTop) << kMantissa);
  }

 private:
  static constexpr int kMantissa = 23;  // bits of a float
  static constexpr uint32_t kLeast = 64, kBias = 127, kTop = 14;
  static constexpr uint32_t kSize =
      0x7fff0000;  // of a number in a float's upper half, without sign
};

// A thread's rows are those of its accumulator. Four lanes share a row, as they do there.
template <Kernel C>
class QueryRescaler {
 public:
  // `rows` is the address of the warp's rows; `live` of a thread's rows are queries'. Gives what
  // products must be multiplied by.
  static __device__ __forceinline__ void fit(uint32_t rows, int live,
                                             float (&inverse)[kRowsPerThread]) {
    const uint32_t lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int stage = 0; stage < kRowsPerThread; ++stage) {
      if (stage >= live) break;
      const int row = int(lane) / kQuadLanes + stage * kRowDistance;
      inverse[stage] = rescale_row(rows, row, int(lane) % kQuadLanes);
    }
  }

 private:
  static constexpr int kChunk = tile::kChunkBytes / 2;  // numbers
  static constexpr int kSteps = C.shape.head_dim / (kQuadLanes * kChunk);
  static_assert(kSteps % 2 == 0 && C.shape.head_dim % (kQuadLanes * kChunk) == 0);

  static __device__ __forceinline__ float rescale_row(uint32_t rows, int row, int part) {
    constexpr tile::TileLayout kQ = C.tiles_in_smem().q;
    // Neighbouring rows begin at opposite halves of their 128 bytes: so no two lanes meet in a
    // bank.
    const auto chunk = [&](int step) {
      return rows + kQ.chunk_offset(row, ((step ^ (row & 1)) * kQuadLanes + part) * kChunk);
    };
    uint32_t largest = 0;
#pragma unroll 2
    for (int step = 0; step < kSteps; ++step) {
      uint32_t pairs[4];
      ptx::ld_shared_b32x4(chunk(step), pairs);
#pragma unroll
      for (uint32_t pair : pairs) largest = RowRescale::larger(largest, pair);
    }
    largest = max(largest, __shfl_xor_sync(0xffffffff, largest, 1));
    largest = max(largest, __shfl_xor_sync(0xffffffff, largest, 2));
    const RowRescale fit = RowRescale::of(largest);
#pragma unroll 2
    for (int step = 0; step < kSteps; ++step) {
      uint32_t pairs[4];
      ptx::ld_shared_b32x4(chunk(step), pairs);
#pragma unroll
      for (uint32_t& pair : pairs) pair = fit.applied(pair);
      ptx::st_shared_b32x4(chunk(step), pairs);
    }
    return fit.inverse();
  }
};

}  // namespace fa3::hopper
