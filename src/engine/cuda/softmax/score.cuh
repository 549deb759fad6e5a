// SPDX-License-Identifier: Apache-2.0
// The score hook: from the products q.k, as the tensor cores leave them, to exponents of two, and
// the range of P. Softmax needs nothing else. prepare() sees a block's products once, before mask
// and softmax, and may leave something else in their place.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/softmax/softmax.cuh"

namespace fa3::cuda {

// P of a score from the row's log-sum-exp, for a backward pass. Only the roundings of large numbers
// make the exponent positive: P is at most 1, whatever they are. The hardware takes -|x| for free.
__device__ __forceinline__ float bounded_p(float exponent) {
  return ex2(-fabsf(exponent));
}

struct ScaledScore {
  float scale_log2;  // softmax scale * log2(e)

  __device__ __forceinline__ void set_scale(float scale) { scale_log2 = scale; }

  template <int Count>
  __device__ __forceinline__ void prepare(float (&)[Count]) const {}

  // log2 of P of a product against a reference.
  __device__ __forceinline__ float exponent(float product, float ref) const {
    return __fmaf_rn(product, scale_log2, -ref);
  }
  // The reference against which this product has the largest P. Rounded once, so that equal
  // products have equal ones.
  __device__ __forceinline__ float reference(float product) const {
    return __fmul_rn(product, scale_log2);
  }
};

// A hook for P in 16 bits. P must survive packing to fp16 (65504) and sums in fp32: a thread adds
// keys / 4 of P a row, so each is at most the bound: 256 on average, at most 256 * 256 / 4.
// HeadroomLog2: how far below 1 the largest P begins. bf16 has the exponents for it, so that scores
// may rise by that many more binary orders before the guard fires. 24 of them keep what underflow
// can take from O below 2^-126 * 2^24, and O's range above is what it was.
template <class Score, int Keys, int HeadroomLog2 = 0>
struct ScoreOf16BitP : Score {
  static constexpr int kGroups = 1;       // of a block's keys, with numbers of their own
  static constexpr bool kRebases = true;  // rows with large references (softmax.cuh)
  // The largest P, where the reference is taken from its score.
  static constexpr float kTop = 1.0f / float(1 << HeadroomLog2);
  static constexpr float kTopLog2 = float(-HeadroomLog2);  // not -0, which would cost an addition
  static constexpr float kBound = 256.0f * Keys / 4;  // on guarded_sum(): above, the guard fires

  // For a product of a group of keys, in one of the thread's rows.
  __device__ __forceinline__ float exponent(int, int, float product, float ref) const {
    return Score::exponent(product, ref);
  }
  // Rounded down: to nearest, large references of unequal products could become equal.
  __device__ __forceinline__ float reference(float product) const {
    const float of_one = Score::reference(product);
    return kTop == 1.0f ? of_one : __fadd_rd(of_one, -kTopLog2);
  }
  // What reference() takes. The groups' largest products are compared by it.
  __device__ __forceinline__ float comparable(int, int, float product) const { return product; }
  // A product whose exponent against a reference of 0 is that of `product` against the one of
  // `largest`, a comparable one.
  __device__ __forceinline__ float distance(int, float product, float largest) const {
    return product - largest;
  }

  using Result = StepResult;
  __device__ __forceinline__ void add_up(const float (&parts)[1][2], int row,
                                         StepResult& result) const {
    result.block_sum[row] = parts[0][0] + parts[0][1];
  }
};

}  // namespace fa3::cuda
