// SPDX-License-Identifier: Apache-2.0
// Score hooks of 16-bit products whose scales are known on the device alone: those of a quantized
// cache. Next: score.cuh.
#pragma once

#include "engine/cuda/softmax/softcap_score.cuh"

namespace fa3::cuda {

// The softcap of products with a scale of their own.
struct ScaledSoftCap {
  const SoftCap& unscaled;
  float cap = unscaled.cap;
  float to_fraction = 0, largest_small = 0, to_exponent = 0;

  __device__ __forceinline__ void set_scale(float scale) {
    to_fraction = unscaled.to_fraction * scale;
    to_exponent = unscaled.to_exponent * scale;
    largest_small = unscaled.largest_small / scale;
  }
  __device__ __forceinline__ float of_small(float product) const {
    return unscaled.of_fraction(product * to_fraction);
  }
};

// Hooks for P in 16 bits and products whose rows have factors of their own, beside the tile's.
template <int Keys>
struct RowScaledScore : ScoreOf16BitP<ScaledScore, Keys> {
  float factor[kRowsPerThread];

  __device__ __forceinline__ void set_scales(float tile, const float (&rows)[kRowsPerThread]) {
    // Not zero: masked scores are -inf.
    for (int row = 0; row < kRowsPerThread; ++row) factor[row] = fmaxf(tile * rows[row], 0x1p-126f);
  }

  __device__ __forceinline__ float exponent(int, int row, float product, float ref) const {
    return __fmaf_rn(product, factor[row], -ref);
  }
  __device__ __forceinline__ float comparable(int, int row, float product) const {
    return __fmul_rn(product, factor[row]);
  }
  __device__ __forceinline__ float reference(float largest) const { return largest; }
  __device__ __forceinline__ float distance(int row, float product, float largest) const {
    // The inverse is not zero, which would make NaN of a masked score, -inf.
    return (comparable(0, row, product) - largest) * rcp(fminf(factor[row], 0x1p126f));
  }
};

template <int Keys>
struct RowScaledCappedScore : ScoreOf16BitP<CappedScoreOf<ScaledSoftCap>, Keys> {
  float factor[kRowsPerThread];

  __device__ __forceinline__ void set_scales(float tile, const float (&rows)[kRowsPerThread]) {
    this->set_scale(tile);
    for (int row = 0; row < kRowsPerThread; ++row) factor[row] = rows[row];
  }

  template <int Count>
  __device__ __forceinline__ void prepare(float (&products)[Count]) const {
#pragma unroll
    for (int i = 0; i < Count; ++i) products[i] *= factor[fragment_row_index(i)];
    CappedScoreOf<ScaledSoftCap>::prepare(products);
  }
};

}  // namespace fa3::cuda
