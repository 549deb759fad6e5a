// SPDX-License-Identifier: Apache-2.0
// Scores of a block of keys in CTAs of 64 query rows: what products are worth, and P of them. Next:
// latent_wide_rows.cuh.
#pragma once

#include <cfloat>

#include "engine/cuda/softmax/score.cuh"
#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/ptx/smem.cuh"

namespace fa3::hopper {

inline constexpr int kWideScores = kLatentBlockKeys / 2;  // of a thread

// Scores of 16-bit rows: products are the same whatever key they are of.
class LatentWideScores {
  using Score = cuda::ScoreOf16BitP<cuda::ScaledScore, kLatentBlockKeys>;

 public:
  using Products = float[kWideScores];
  using OfRows = float[kRowsPerThread];

  __device__ __forceinline__ explicit LatentWideScores(float scale_log2) {
    score_.set_scale(scale_log2);
  }

  // The rows' largest products.
  __device__ __forceinline__ void find_largest(const Products& products, OfRows& largest) const {
    cuda::row_max(products, largest);
  }
  // What a row's product is worth, in log2 units; and the reference against which its P is largest.
  __device__ __forceinline__ float score_of(int, float product) const {
    return score_.reference(product);
  }
  __device__ __forceinline__ float reference(int, float product) const {
    return score_.reference(product);
  }
  __device__ __forceinline__ void rebase_large_rows(Products& products, const OfRows& largest,
                                                    OfRows& refs) const {
    cuda::rebase_large_rows(products, largest, score_, refs);
  }
  // Products become P, which the rows' sums get as well.
  __device__ __forceinline__ void exponentiate(Products& products, const OfRows& refs,
                                               OfRows& row_sums) const {
    float finite[kRowsPerThread], sums[kRowsPerThread][2] = {};
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) finite[r] = cuda::finite_reference(refs[r]);
#pragma unroll
    for (int i = 0; i < kWideScores; ++i) {
      const int row = cuda::fragment_row_index(i);
      products[i] = cuda::ex2(score_.exponent(0, row, products[i], finite[row]));
      sums[row][i % 2] += products[i];
    }
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) row_sums[r] += sums[r][0] + sums[r][1];
  }

 private:
  Score score_;
};

// Scores of byte rows that the loader has made fp16, divided by the units of 16 keys each: a
// product times the unit is what others are compared with. V are divided by the unit as well, so P
// is multiplied by it, and divided by the largest unit so far: P of a key in fp16 loses nothing if
// it is 2^-21 of the largest P and its unit the largest, or the other way round.
//
// References are integers, so that the difference of them and of a unit's exponent is exact.
class LatentUnitScores {
 public:
  using Products = float[kWideScores];
  using OfRows = float[kRowsPerThread];
  // The largest P begins there: fp16 has 65504, and scores outgrow references by 2^8 before they
  // move.
  static constexpr float kTop = 7;

  __device__ __forceinline__ explicit LatentUnitScores(float scale_log2)
      : scale_log2_(scale_log2) {}

  // factors: what undoes those of the rows' queries.
  __device__ __forceinline__ void start(const OfRows& factors) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      scales_[r] = fminf(factors[r] * scale_log2_, FLT_MAX);  // infinity times zero is NaN
    }
  }
  // The exponents of a block's units lie at `address`.
  __device__ __forceinline__ void load_units(uint32_t address) {
    ptx::ld_shared_f32x4(address, units_);
  }
  __device__ __forceinline__ float largest_unit() const {
    return fmaxf(fmaxf(units_[0], units_[1]), fmaxf(units_[2], units_[3]));
  }
  // What O of all keys is multiplied by, at the end.
  static __device__ __forceinline__ float output_factor(float largest_unit) {
    return cuda::ex2(largest_unit - kTop);
  }

  __device__ __forceinline__ void find_largest(const Products& products, OfRows& largest) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float partial[kRowsPerThread][2];
      cuda::partial_max(products, group * kOfGroup, (group + 1) * kOfGroup, partial);
      const float unit = cuda::ex2(units_[group]);
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const float x = fmaxf(partial[r][0], partial[r][1]) * unit;
        largest[r] = group == 0 ? x : fmaxf(largest[r], x);
      }
    }
#pragma unroll
    for (float& x : largest) x = cuda::quad_max(x);
  }
  __device__ __forceinline__ float score_of(int r, float product) const {
    return __fmul_rn(product, scales_[r]);
  }
  __device__ __forceinline__ float reference(int r, float product) const {
    return ceilf(score_of(r, product));
  }

  // As cuda::rebase_large_rows().
  __device__ __forceinline__ void rebase_large_rows(Products& products, const OfRows& largest,
                                                    OfRows& refs) const {
    bool rebases[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      rebases[r] = cuda::is_large(refs[r]) && fabsf(largest[r]) < cuda::kInfinity;
      if (rebases[r]) refs[r] -= score_of(r, largest[r]);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float by_unit = cuda::ex2(-units_[group]);
#pragma unroll
      for (int i = group * kOfGroup; i < (group + 1) * kOfGroup; ++i) {
        const int r = cuda::fragment_row_index(i);
        // A sum of both infinities is NaN: keys that a row does not see may have the least unit.
        if (rebases[r]) products[i] -= fmaxf(largest[r] * by_unit, -FLT_MAX);
      }
    }
  }

  // largest_unit: so far, as its exponent.
  __device__ __forceinline__ void exponentiate(Products& products, const OfRows& refs,
                                               float largest_unit, OfRows& row_sums) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float unit = cuda::ex2(units_[group]);
      const float shift = fmaxf(units_[group] - largest_unit, kLeastShift) + kTop;
      float factor[kRowsPerThread], offset[kRowsPerThread], sums[kRowsPerThread][2] = {};
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        factor[r] = fmaxf(scales_[r] * unit, FLT_MIN);  // zero times -infinity is NaN
        offset[r] = shift - cuda::finite_reference(refs[r]);
      }
#pragma unroll
      for (int i = group * kOfGroup; i < (group + 1) * kOfGroup; ++i) {
        const int r = cuda::fragment_row_index(i);
        products[i] = cuda::ex2(__fmaf_rn(products[i], factor[r], offset[r]));
        sums[r][i % 2] += products[i];
      }
      const float by_shift = cuda::ex2(-shift);
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        row_sums[r] = __fmaf_rn(sums[r][0] + sums[r][1], by_shift, row_sums[r]);
      }
    }
  }

 private:
  static constexpr int kGroups = kWarpsPerWarpgroup, kOfGroup = kWideScores / kGroups;
  // Far enough below for fp16 to have nothing, and for sums to have P.
  static constexpr float kLeastShift = -100;

  const float scale_log2_;
  float scales_[kRowsPerThread];
  float units_[kGroups];
};

}  // namespace fa3::hopper
