// SPDX-License-Identifier: Apache-2.0
//
// What the ampere engine's kernels need of CUDA C++ beside the model's words (hopper/machine). With
// numbers: included before everything else. CTAs come one after the other, so a static variable is
// the running one's.
#pragma once

#include "cuda_words.h"

#undef __shared__
#define __shared__ static

inline int max(int a, int b) {
  return a > b ? a : b;
}
inline float atomicAdd(float* at, float value) {
  const float before = *at;
  *at += value;
  return before;
}
