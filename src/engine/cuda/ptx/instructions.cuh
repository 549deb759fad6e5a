// SPDX-License-Identifier: Apache-2.0
// Instructions that every GPU with tensor cores has and CUDA C++ has no word for, one a function.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/fragment.h"

namespace fa3::cuda {

// threadIdx.x, read again at each call: in rare code a register is worth more than the read.
__device__ __forceinline__ unsigned thread_in_block() {
  unsigned x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// Makes the compiler compute x before the volatile code that follows.
__device__ __forceinline__ void settle(uint32_t& x) {
  asm volatile("" : "+r"(x));
}

// The shared-memory address of a pointer into shared memory. Volatile: computed where it stands,
// once, instead of again at every use.
__device__ __forceinline__ uint32_t cvta_to_shared(const void* pointer) {
  uint32_t address;
  asm volatile(
      "{\n.reg .u64 wide;\n"
      "cvta.to.shared.u64 wide, %1;\n"
      "cvt.u32.u64 %0, wide;\n}\n"
      : "=r"(address)
      : "l"(pointer));
  return address;
}

// ---- Arithmetic: the hardware's 2^x, log2 and 1/x, and a paired conversion ----

__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// max(a, b), or NaN if one of them is.
__device__ __forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// Packs four numbers as e4m3, the first in the lowest byte. Sizes beyond 448 become 448.
__device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint32_t packed;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}\n"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

template <Element E>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  uint32_t pair;
  if constexpr (E == Element::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// Packs a pair like pack_pair(), with zeros for negative numbers.
template <Element E>
__device__ __forceinline__ uint32_t pack_positive_pair(float low, float high) {
  uint32_t pair;
  if constexpr (E == Element::kBf16) {
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// Multiplies both halves, subnormal numbers too. bf16 adds -0 to its products, because a
// multiplication alone needs compute capability 9.0.
template <Element E>
__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t products;
  if constexpr (E == Element::kBf16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(products) : "r"(a), "r"(b), "r"(0x80008000));
  } else {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(products) : "r"(a), "r"(b));
  }
  return products;
}

// Replaces the negative numbers of a pair by zeros.
template <Element E>
__device__ __forceinline__ uint32_t positive_pair(uint32_t pair) {
  uint32_t positive;
  if constexpr (E == Element::kBf16) {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(positive) : "r"(pair), "r"(0));
  } else {
    asm("max.f16x2 %0, %1, %2;" : "=r"(positive) : "r"(pair), "r"(0));
  }
  return positive;
}

// All ones in each half whose lower 15 bits are below those of the limits, at most 0x4000; else
// zero. As fp16 without their sign such numbers are in the same order, and NaN is not below.
__device__ __forceinline__ uint32_t halves_below(uint32_t draws, uint32_t limits) {
  uint32_t below;
  asm("{\n.reg .b32 x;\n"
      "abs.f16x2 x, %1;\n"
      "set.lt.u32.f16x2 %0, x, %2;\n}\n"
      : "=r"(below)
      : "r"(draws), "r"(limits));
  return below;
}

// ---- Global memory, as wide as it is meant: the compiler splits what it cannot align ----

// Loads 16 bytes, or zeros where the condition does not hold.
__device__ __forceinline__ void load_global_if(bool condition, const void* pointer,
                                               uint32_t (&value)[4]) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %4, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%5];\n}\n"
      : "=&r"(value[0]), "=&r"(value[1]), "=&r"(value[2]), "=&r"(value[3])
      : "r"(int(condition)), "l"(pointer)
      : "memory");
}

// Loads 4 bytes that nobody writes, or zeros. Volatile, so that the load does not move behind
// products that are waited for.
__device__ __forceinline__ uint32_t load_global_word(bool condition, const void* pointer) {
  uint32_t word;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %1, 0;\n"
      "mov.b32 %0, 0;\n"
      "@p ld.global.nc.b32 %0, [%2];\n}\n"
      : "=&r"(word)
      : "r"(int(condition)), "l"(pointer));
  return word;
}

// Loads the first `count` of 8 numbers of 16 bits; the others are zeros.
__device__ __forceinline__ void load_global_numbers(int count, const uint16_t* pointer,
                                                    uint32_t (&value)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    asm volatile(
        "{\n.reg .pred p, q;\n.reg .b16 low, high;\n"
        "setp.gt.s32 p, %1, 0;\nsetp.gt.s32 q, %1, 1;\n"
        "mov.b16 low, 0;\nmov.b16 high, 0;\n"
        "@p ld.global.b16 low, [%2];\n@q ld.global.b16 high, [%2 + 2];\n"
        "mov.b32 %0, {low, high};\n}\n"
        : "=r"(value[i])
        : "r"(count - 2 * i), "l"(pointer + 2 * i)
        : "memory");
  }
}

// Loads what other SMs have written: not from the L1 cache.
__device__ __forceinline__ void load_global_if(bool condition, const float* pointer,
                                               float4& value) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %4, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%5];\n}\n"
      : "=&f"(value.x), "=&f"(value.y), "=&f"(value.z), "=&f"(value.w)
      : "r"(int(condition)), "l"(pointer));
}
__device__ __forceinline__ float load_global_or(bool condition, const float* pointer,
                                                float otherwise) {
  float value;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %1, 0;\n"
      "mov.b32 %0, %3;\n"
      "@p ld.global.cg.f32 %0, [%2];\n}\n"
      : "=&f"(value)
      : "r"(int(condition)), "l"(pointer), "f"(otherwise));
  return value;
}

// Stores 16 bytes where the condition holds.
__device__ __forceinline__ void store_global_if(bool condition, void* pointer,
                                                const uint32_t (&value)[4]) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %0, 0;\n"
      "@p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}\n" ::"r"(int(condition)),
      "l"(pointer), "r"(value[0]), "r"(value[1]), "r"(value[2]), "r"(value[3])
      : "memory");
}

__device__ __forceinline__ void store_global_if(bool condition, float* pointer, float value) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %0, 0;\n"
      "@p st.global.f32 [%1], %2;\n}\n" ::"r"(int(condition)),
      "l"(pointer), "f"(value)
      : "memory");
}

__device__ __forceinline__ void store_global_if(bool condition, float* pointer, float first,
                                                float second) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %0, 0;\n"
      "@p st.global.v2.f32 [%1], {%2, %3};\n}\n" ::"r"(int(condition)),
      "l"(pointer), "f"(first), "f"(second)
      : "memory");
}

// Two numbers that belong together, such as a reference and a sum.
__device__ __forceinline__ float2 load_global_or(bool condition, const float2* pointer,
                                                 float2 otherwise) {
  float2 value;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %2, 0;\n"
      "mov.b32 %0, %4;\nmov.b32 %1, %5;\n"
      "@p ld.global.cg.v2.f32 {%0, %1}, [%3];\n}\n"
      : "=&f"(value.x), "=&f"(value.y)
      : "r"(int(condition)), "l"(pointer), "f"(otherwise.x), "f"(otherwise.y));
  return value;
}
__device__ __forceinline__ void store_global_if(bool condition, float2* pointer, float2 value) {
  store_global_if(condition, &pointer->x, value.x, value.y);
}

__device__ __forceinline__ void prefetch_to_l2(const void* pointer) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

// Atomically replaces the number at `to` by the larger of it and `value`, or by NaN. The bits of
// floats compare like the floats: as signed integers if `value` has no sign; else as unsigned ones
// in reverse order.
__device__ __forceinline__ void raise_to(float* to, float value) {
  const int bits = __float_as_int(value);
  if (bits >= 0) {
    asm volatile("red.global.max.s32 [%0], %1;" ::"l"(to), "r"(bits) : "memory");
  } else {
    asm volatile("red.global.min.u32 [%0], %1;" ::"l"(to), "r"(bits) : "memory");
  }
}

// ---- Fragments of one warp ----

// Transposes an 8 x 8 matrix of 16-bit elements, of which a lane holds two neighbours of a row.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t other;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
  return other;
}

// ---- The matrix multiply of one warp (PTX ISA, "mma.sync") ----

// d[0..4) += A B, A 16 by 16, B 16 by 8.
template <Element E>
__device__ __forceinline__ void mma_m16n8k16(float* d, const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  if constexpr (E == Element::kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// The MMA of e4m3: A 16 by 32, B 32 by 8.
__device__ __forceinline__ void mma_m16n8k32(float* d, const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace fa3::cuda
