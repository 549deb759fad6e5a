// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the machine of the protocol test.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/cuda/ptx/fragment.h"
#include "instructions.h"

namespace fa3::cuda {

inline unsigned thread_in_block() {
  return threadIdx.x;
}

inline uint32_t cvta_to_shared(const void* pointer) {
  return machine::shared_address(pointer);
}

inline void settle(uint32_t&) {}
inline float ex2(float x) {
  return std::exp2(machine::settled(x));
}
inline float lg2(float x) {
  return std::log2(x);
}
inline float rcp(float x) {
  return 1 / x;
}
inline float max_nan(float a, float b) {
  return std::isnan(a) || b <= a ? a : b;
}
inline uint32_t pack_e4m3(float a, float b, float c, float d) {
  for (float x : {a, b, c, d}) machine::settled(x);
  return 0;
}
template <Element E>
uint32_t pack_pair(float low, float high) {
  machine::settled(low);
  machine::settled(high);
  return 0;  // nobody looks at weights or outputs
}
template <Element E>
uint32_t pack_positive_pair(float low, float high) {
  return pack_pair<E>(low, high);
}
template <Element E>
uint32_t positive_pair(uint32_t pair) {
  return pair;
}
inline uint32_t halves_below(uint32_t draws, uint32_t limits) {
  const uint32_t low = (draws & 0x7fff) < (limits & 0xffff) ? 0xffff : 0;
  return low | ((draws >> 16 & 0x7fff) < limits >> 16 ? 0xffff0000 : 0);
}

inline void prefetch_to_l2(const void*) {}
inline void raise_to(float*, float) {}

inline void load_global_if(bool, const void*, uint32_t (&value)[4]) {
  for (uint32_t& word : value) word = 0;  // tensors have no memory here
}
inline uint32_t load_global_word(bool, const void*) {
  return 0;
}
inline void load_global_numbers(int, const uint16_t*, uint32_t (&value)[4]) {
  for (uint32_t& word : value) word = 0;
}
inline void load_global_if(bool condition, const float* pointer, float4& value) {
  value = condition ? float4{pointer[0], pointer[1], pointer[2], pointer[3]} : float4{};
}
inline float load_global_or(bool condition, const float* pointer, float otherwise) {
  return condition ? *pointer : otherwise;
}
inline void store_global_if(bool condition, void* pointer, const uint32_t (&)[4]) {
  if (condition) machine::store_global(pointer);
}
inline void store_global_if(bool condition, float* pointer, float value) {
  if (condition) *pointer = machine::settled(value);
}

inline void store_global_if(bool condition, float* pointer, float first, float second) {
  if (!condition) return;
  machine::settled(first), machine::settled(second);
  machine::store_global(pointer);
}

inline float2 load_global_or(bool condition, const float2* pointer, float2 otherwise) {
  return condition ? *pointer : otherwise;
}
inline void store_global_if(bool condition, float2* pointer, float2 value) {
  if (condition) *pointer = {machine::settled(value.x), machine::settled(value.y)};
}

inline uint32_t transposed(uint32_t pair) {
  return pair;
}

template <Element E>
void mma_m16n8k16(float*, const uint32_t (&)[4], const uint32_t (&)[2]) {}
inline void mma_m16n8k32(float*, const uint32_t (&)[4], const uint32_t (&)[2]) {}

}  // namespace fa3::cuda
