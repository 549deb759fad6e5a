// SPDX-License-Identifier: Apache-2.0
// What becomes of a query row's sums: the factor of its O, its LSE and its maximum, with the sink.
// The rules are those of the CPU engines (cpu/latent/rows.h).
#pragma once

#include "engine/cuda/softmax/softmax.cuh"
#include "engine/hopper/latent/latent_params.h"

namespace fa3::hopper {

// A row of the results: batch entry, row of the tensor, and head.
struct ResultRow {
  int64_t b, row, head;

  __device__ __forceinline__ float* of(const RowScalars& x) const {
    return x.data + (b * x.batch_stride + head * x.head_stride + row * x.row_stride);
  }
};

// Natural, without the sink.
__device__ __forceinline__ float bare_lse(const LatentSum& s) {
  return s.sum == 0 ? -cuda::kInfinity : cuda::kLn2 * cuda::log_sum<0>(s.ref, s.sum);
}

// What O, not normalised, is multiplied by.
__device__ __forceinline__ float output_factor(const MlaProblem& p, const LatentSum& s,
                                               int64_t head) {
  const float factor = s.sum == 0 ? 0.0f : 1 / s.sum;
  if (p.sink == nullptr) return factor;
  const float sink = p.sink[head];
  if (isnan(sink)) return sink;
  if (isinf(sink)) return sink > 0 ? 0.0f : factor;
  return factor / (1 + expf(sink - bare_lse(s)));
}

__device__ __forceinline__ float lse_with_sink(const MlaProblem& p, float lse, int64_t head) {
  if (p.sink != nullptr && p.lse_with_sink) {
    const float sink = p.sink[head];
    if (isnan(sink) || sink == cuda::kInfinity) return sink;
    if (sink != -cuda::kInfinity) {
      // NaN stays: fmaxf() of both has the sink, the exponential the NaN.
      const float most = fmaxf(lse, sink);
      lse = most + logf(expf(lse - most) + expf(sink - most));
    }
  }
  return lse == -cuda::kInfinity ? p.empty_lse : lse;
}

__device__ __forceinline__ void store_statistics(const MlaProblem& p, const LatentSum& s,
                                                 const ResultRow& row) {
  if (p.lse.data != nullptr) *row.of(p.lse) = lse_with_sink(p, bare_lse(s), row.head);
  // A score of NaN leaves the reference, and makes the sum NaN.
  if (p.max.data != nullptr) *row.of(p.max) = isnan(s.sum) ? s.sum : s.ref * cuda::kLn2;
}

}  // namespace fa3::hopper
