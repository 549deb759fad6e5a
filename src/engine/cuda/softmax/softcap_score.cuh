// SPDX-License-Identifier: Apache-2.0
// The softcap in a backward pass. Next: score.cuh.
#pragma once

#include "engine/cuda/softmax/score.cuh"

namespace fa3::cuda {

// The score hook, and the softcap's derivative: from 1 to 0 towards the cap.
struct SoftcapScore : CappedScore {
  float per_cap;

  __device__ __forceinline__ float derivative(float score) const {
    const float tanh = score * per_cap;
    return fmaxf(__fmaf_rn(-tanh, tanh, 1.0f), 0.0f);  // 0 where a score is masked, -inf
  }
};

}  // namespace fa3::cuda
