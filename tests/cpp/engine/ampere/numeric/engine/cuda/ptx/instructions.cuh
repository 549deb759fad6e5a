// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, with numbers.
#pragma once

#include <cmath>

#include "core/dtype.h"
#include "engine/cuda/ptx/element.h"
#include "lanes.cuh"

namespace fa3::cuda {

inline unsigned thread_in_block() {
  return threadIdx.x;
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
inline void store_global_if(bool condition, void* pointer, const uint32_t (&value)[4]) {
  if (condition) std::memcpy(pointer, value, sizeof(value));
}
inline void store_global_if(bool condition, float* pointer, float value) {
  if (condition) *pointer = value;
}
inline void store_global_if(bool condition, float* pointer, float first, float second) {
  if (condition) pointer[0] = first, pointer[1] = second;
}

// PTX ISA, "Matrix Fragments for mma.m16n8k16": row g + 8 i / 2 and column 2 t + i % 2 of D; A's
// registers go down the rows first, B's along the depth.
template <Element E>
void mma_m16n8k16(float* d, const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Operands {
    uint32_t a[4], b[2];
  } mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const auto all = machine::brought("mma.sync", mine);
  const int lane = int(threadIdx.x % 32), group = lane / 4, thread = lane % 4;
  const auto half = [](uint32_t pair, int k) {
    return double(widened<E>(uint16_t(k % 2 == 0 ? pair : pair >> 16)));
  };
  for (int i = 0; i < 4; ++i) {
    const int row = group + i / 2 * 8, column = 2 * thread + i % 2;
    double sum = double(d[i]);
    for (int k = 0; k < 16; ++k) {
      const auto& of_row = all[size_t(row % 8 * 4 + k % 8 / 2)];
      const auto& of_column = all[size_t(column * 4 + k % 8 / 2)];
      sum += half(of_row.a[row / 8 + k / 8 * 2], k) * half(of_column.b[k / 8], k);
    }
    d[i] = float(sum);
  }
}

}  // namespace fa3::cuda
