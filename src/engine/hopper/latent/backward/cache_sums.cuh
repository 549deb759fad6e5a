// SPDX-License-Identifier: Apache-2.0
// How a lane adds to the sums of one row of the cache: in floats, 16 bytes at once, or in integers,
// whose bits are the same in any order. Of each eight columns a lane has two neighbours.
#pragma once

#include "engine/hopper/latent/backward/latent_backward_params.h"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/global.cuh"
#include "engine/hopper/ptx/integer_sums.cuh"

namespace fa3::hopper {

// row: -1: none.
class FloatSums {
 public:
  FloatSums() = default;
  __device__ __forceinline__ FloatSums(const LatentBackwardParams& params, int row, int head_dim)
      : row_(row < 0 ? nullptr : params.sums + int64_t{row} * head_dim) {}

  __device__ __forceinline__ bool exists() const { return row_ != nullptr; }

  // Columns from `first` on; each second pair of `sums`.
  __device__ __forceinline__ void add(const float* sums, int first, int lane, float factor) const {
    float* const to = row_ + (first + lane * 4);
#pragma unroll
    for (int sixteen = 0; sixteen < 4; ++sixteen) {
      const float* const from = sums + sixteen * 8;
      const float four[4] = {from[0] * factor, from[1] * factor, from[4] * factor,
                             from[5] * factor};
      ptx::red_global_add_f32x4(to + sixteen * 16, four);
    }
  }

 private:
  float* row_;
};

class IntegerSums {
 public:
  IntegerSums() = default;
  __device__ __forceinline__ IntegerSums(const LatentBackwardParams& params, int row, int head_dim)
      : row_(row < 0 ? nullptr : params.integer_sums + int64_t{row} * head_dim) {
    if (row < 0) return;
    const float2 scale = __ldg(reinterpret_cast<const float2*>(params.scales + row));
    scale_ = {scale.x, scale.y};
  }

  __device__ __forceinline__ bool exists() const { return row_ != nullptr; }

  __device__ __forceinline__ void add(const float* sums, int first, int lane, float) const {
    int64_t* const to = row_ + (first + lane);
    bool all_fit = true;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) all_fit &= fabsf(contribution(sums, i)) <= scale_.largest;
    if (all_fit) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        ptx::red_global_add(to + i * 4, __float2ll_rn(contribution(sums, i)));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        // In other words than above, or the compiler keeps 16 predicates.
        const float x = contribution(sums, i);
        if (x >= -scale_.largest && x <= scale_.largest) {
          ptx::red_global_add(to + i * 4, __float2ll_rn(x));
        } else {
          ptx::red_global_max(to + i * 4, kNotFinite);
        }
      }
    }
  }

 private:
  static constexpr int kOwn = 16;  // columns of a lane, of 64

  __device__ __forceinline__ float contribution(const float* sums, int i) const {
    return sums[i / 2 * 4 + i % 2] * scale_.factor;
  }

  int64_t* row_;
  RowScale scale_;
};

}  // namespace fa3::hopper
