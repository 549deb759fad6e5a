// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, with numbers.
#pragma once

#include <cmath>
#include <cstring>

#include "core/dtype.h"
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

// As integers: limits are at most 0x4000, so what is NaN as fp16 is above them.
inline uint32_t halves_below(uint32_t draws, uint32_t limits) {
  const uint32_t low = (draws & 0x7fff) < (limits & 0xffff) ? 0xffff : 0;
  return low | ((draws >> 16 & 0x7fff) < limits >> 16 ? 0xffff0000 : 0);
}

inline float ex2(float x) {
  return std::exp2(x);
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

inline void raise_to(float* to, float value) {
  *to = max_nan(*to, value);
}

template <Element E>
uint16_t narrowed(float x) {
  return E == Element::kBf16 ? from_float<BFloat16>(x).bits : from_float<Float16>(x).bits;
}
template <Element E>
float widened(uint16_t bits) {
  return E == Element::kBf16 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
}
template <Element E>
uint32_t pack_pair(float low, float high) {
  return narrowed<E>(low) | uint32_t{narrowed<E>(high)} << 16;
}
template <Element E>
uint32_t pack_positive_pair(float low, float high) {
  const auto positive = [](float x) { return x < 0 ? 0.0f : x; };
  return pack_pair<E>(positive(low), positive(high));
}

template <Element E>
uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  const auto product = [](uint32_t x, uint32_t y) {
    return widened<E>(uint16_t(x)) * widened<E>(uint16_t(y));
  };
  return pack_pair<E>(product(a, b), product(a >> 16, b >> 16));
}

inline void load_global_if(bool condition, const void* pointer, uint32_t (&value)[4]) {
  std::memset(value, 0, sizeof(value));
  if (condition) std::memcpy(value, pointer, sizeof(value));
}
inline void load_global_if(bool condition, const float* pointer, float4& value) {
  value = condition ? float4{pointer[0], pointer[1], pointer[2], pointer[3]} : float4{};
}
inline uint32_t load_global_word(bool condition, const void* pointer) {
  uint32_t word = 0;
  if (condition) std::memcpy(&word, pointer, sizeof(word));
  return word;
}
inline void prefetch_to_l2(const void*) {}
inline float load_global_or(bool condition, const float* pointer, float otherwise) {
  return condition ? *pointer : otherwise;
}
inline float2 load_global_or(bool condition, const float2* pointer, float2 otherwise) {
  return condition ? *pointer : otherwise;
}
inline void store_global_if(bool condition, void* pointer, const uint32_t (&value)[4]) {
  if (condition) std::memcpy(pointer, value, sizeof(value));
}
inline void store_global_if(bool condition, float* pointer, float value) {
  if (condition) *pointer = value;
}
inline void store_global_if(bool condition, float2* pointer, float2 value) {
  if (condition) *pointer = value;
}
inline void store_global_if(bool condition, float* pointer, float first, float second) {
  if (condition) pointer[0] = first, pointer[1] = second;
}

// PTX ISA, "Matrix Fragments for mma.m16n8k16", summed in float32.
template <Element E>
void mma_m16n8k16(float* d, const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Mine {
    float* d;
    const uint32_t *a, *b;
  } mine{d, a, b};
  machine::together("mma.m16n8k16", &mine, [](const auto& lanes) {
    const auto of_lane = [&](int lane) {
      return *reinterpret_cast<const Mine*>(lanes[size_t(lane)]);
    };
    float left[16][16], right[16][8];
    for (int lane = 0; lane < machine::kLanes; ++lane) {
      const Mine m = of_lane(lane);
      const int row = lane / 4, column = lane % 4 * 2;
      for (int i = 0; i < 8; ++i) {
        left[row + i / 2 % 2 * 8][column + i / 4 * 8 + i % 2] =
            widened<E>(uint16_t(m.a[i / 2] >> i % 2 * 16));
      }
      for (int i = 0; i < 4; ++i) {
        right[column + i / 2 * 8 + i % 2][row] = widened<E>(uint16_t(m.b[i / 2] >> i % 2 * 16));
      }
    }
    for (int lane = 0; lane < machine::kLanes; ++lane) {
      float* const sums = of_lane(lane).d;
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) sums[i] += left[row][k] * right[k][column];
      }
    }
  });
}

}  // namespace fa3::cuda
