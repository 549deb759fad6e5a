// SPDX-License-Identifier: Apache-2.0
//
// What the latent kernels need of CUDA C++ beside the model's words. Included before everything
// else.
#pragma once

#include "cuda_words.h"

using std::isfinite;
using std::isinf;
using std::isnan;

#undef __shared__
#define __shared__

inline int max(int a, int b) {
  return a > b ? a : b;
}
// Of numbers that int64_t has.
inline int64_t __float2ll_rn(float x) {
  return int64_t(std::nearbyint(x));
}
