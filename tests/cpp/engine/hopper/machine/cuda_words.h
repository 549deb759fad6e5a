// SPDX-License-Identifier: Apache-2.0
//
// The words of CUDA C++ that the kernels use, for a host compiler. Included before everything else.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <bit>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes.h"

#undef __forceinline__
#undef __launch_bounds__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)

namespace fa3::machine {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
void sync_block();
void sync_warp();
int draw(int* counter, int count);
// Shared memory of the CTA that runs.
unsigned char* shared_memory();
// What each lane of a warp has brought to the same instruction.
const std::array<uint64_t, kLanes>& exchange(const char* instruction, uint64_t mine);

}  // namespace fa3::machine

extern fa3::machine::Index threadIdx, blockIdx, blockDim, gridDim;

namespace fa3::machine {

inline int own_lane() {
  return int(threadIdx.x) % kThreadsPerWarp;
}

template <class T>
T of_lane(const char* instruction, const T& value, int lane) {
  if constexpr (!kAllLanes) return value;
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange(instruction, bits)[size_t(lane)];
  T theirs;
  std::memcpy(&theirs, &bits, sizeof(T));
  return theirs;
}

}  // namespace fa3::machine

// A kernel declares its dynamic shared memory `extern __shared__ __align__(n) ... raw_smem[]`: that
// becomes a pointer to its CTA's, and a second declaration in a scope that ends at once.
#undef __align__
#define __align__(bytes)                                           \
  void shared_memory_of_all_ctas();                                \
  unsigned char* const raw_smem = ::fa3::machine::shared_memory(); \
  if constexpr (false) [[maybe_unused]]                            \
  extern

// ---- What lanes do together. Of a lane that stands for its warp, the others have what it has ----

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return fa3::machine::of_lane("__shfl_sync", value, lane);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  const int lane = fa3::machine::own_lane();
  return fa3::machine::of_lane("__shfl_up_sync", value, lane < distance ? lane : lane - distance);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int distance) {
  const int lane = fa3::machine::own_lane(), from = lane + distance;
  return fa3::machine::of_lane("__shfl_down_sync", value, from < 32 ? from : lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  const int lane = fa3::machine::own_lane();
  return fa3::machine::of_lane("__shfl_xor_sync", value, lane ^ distance);
}
inline unsigned __ballot_sync(unsigned, bool value) {
  if constexpr (!fa3::machine::kAllLanes) return value ? ~0u : 0u;
  unsigned votes = 0, lane = 0;
  for (uint64_t vote : fa3::machine::exchange("__ballot_sync", value)) {
    votes |= unsigned(vote) << lane++;
  }
  return votes;
}
inline bool __any_sync(unsigned mask, bool value) {
  return __ballot_sync(mask, value) != 0;
}
inline bool __all_sync(unsigned mask, bool value) {
  return __ballot_sync(mask, value) == ~0u;
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  if constexpr (!fa3::machine::kAllLanes) return value;
  unsigned all = 0;
  for (uint64_t bits : fa3::machine::exchange("__reduce_or_sync", value)) all |= unsigned(bits);
  return all;
}
inline int __reduce_max_sync(unsigned, int value) {
  if constexpr (!fa3::machine::kAllLanes) return value;
  int most = value;
  for (uint64_t other : fa3::machine::exchange("__reduce_max_sync", value)) {
    most = most > int(other) ? most : int(other);
  }
  return most;
}
inline void __syncwarp() {
  if constexpr (fa3::machine::kAllLanes) fa3::machine::sync_warp();
}
inline void __syncthreads() {
  fa3::machine::sync_block();
}
inline int min(int a, int b) {
  return a < b ? a : b;
}
inline unsigned max(unsigned a, unsigned b) {
  return a > b ? a : b;
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) {
    chosen |= uint32_t(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return chosen;
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rd(float a, float b) {
  const double sum = double(a) + double(b);
  const float near = float(sum);
  return double(near) > sum ? std::nextafterf(near, -INFINITY) : near;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
using std::signbit;
inline int atomicAdd(int* counter, int count) {
  return fa3::machine::draw(counter, count);
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
T __ldg(const T* at) {
  return *at;
}
