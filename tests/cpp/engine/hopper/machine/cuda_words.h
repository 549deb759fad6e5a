// SPDX-License-Identifier: Apache-2.0
//
// The words of CUDA C++ that the kernels use, for a host compiler: one thread stands for a warp
// (its lane 0), and what a warp does together is what that lane does. Included before everything
// else.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <bit>

#include <cmath>
#include <cstdint>

#undef __forceinline__
#undef __launch_bounds__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace fa3::machine {

struct Index {
  unsigned x;
};
void sync_block();
int draw(int* counter, int count);

}  // namespace fa3::machine

extern fa3::machine::Index threadIdx, blockIdx, gridDim;

template <class T>
T __shfl_sync(unsigned, T value, int) {
  return value;
}
template <class T>
T __shfl_up_sync(unsigned, T value, int) {
  return value;
}
inline unsigned max(unsigned a, unsigned b) {
  return a > b ? a : b;
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int) {
  return value;
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  return value;
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline bool __any_sync(unsigned, bool value) {
  return value;
}
inline bool __all_sync(unsigned, bool value) {
  return value;
}
inline unsigned __ballot_sync(unsigned, bool value) {
  return value ? ~0u : 0u;
}
inline void __syncwarp() {}
inline void __syncthreads() {
  fa3::machine::sync_block();
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline int atomicAdd(int* counter, int count) {
  return fa3::machine::draw(counter, count);
}
inline unsigned atomicOr(unsigned* word, unsigned bits) {
  const unsigned before = *word;
  *word |= bits;
  return before;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
T __ldg(const T* at) {
  return *at;
}
