// SPDX-License-Identifier: Apache-2.0
//
// The words of CUDA C++ that the kernels use, for a host compiler. Included before everything else.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "emulator.h"

#undef __forceinline__
#undef __launch_bounds__
#undef __shared__
#undef __align__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(bytes) alignas(bytes)

namespace fa3::emulator {
struct Index {
  unsigned x = 0, y = 0, z = 0;
};
}  // namespace fa3::emulator

extern fa3::emulator::Index threadIdx, blockIdx, gridDim;

template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  return fa3::emulator::of_lane("__shfl_xor_sync", value, int(threadIdx.x % 32) ^ distance);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return fa3::emulator::of_lane("__shfl_sync", value, lane);
}
inline unsigned __ballot_sync(unsigned, bool value) {
  struct Mine {
    bool value;
    unsigned votes;
  } mine{value, 0};
  fa3::emulator::meet("vote", &mine, [](void* const* lanes) {
    unsigned votes = 0;
    for (int i = 0; i < fa3::emulator::kLanes; ++i) {
      votes |= unsigned(static_cast<Mine*>(lanes[i])->value) << i;
    }
    for (int i = 0; i < fa3::emulator::kLanes; ++i) static_cast<Mine*>(lanes[i])->votes = votes;
  });
  return mine.votes;
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  unsigned all = 0;
  for (int lane = 0; lane < fa3::emulator::kLanes; ++lane) {
    all |= fa3::emulator::of_lane("__reduce_or_sync", value, lane);
  }
  return all;
}
inline bool __any_sync(unsigned mask, bool value) {
  return __ballot_sync(mask, value) != 0;
}
inline bool __all_sync(unsigned mask, bool value) {
  return __ballot_sync(mask, value) == ~0u;
}
inline void __syncthreads() {
  fa3::emulator::barrier_sync(0, 0);
}
inline int max(int a, int b) {
  return a > b ? a : b;
}
inline int min(int a, int b) {
  return a < b ? a : b;
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
using std::signbit;
inline float atomicAdd(float* at, float value) {
  const float before = *at;
  *at += value;
  return before;
}
template <class T>
T __ldg(const T* at) {
  return *at;
}
