// SPDX-License-Identifier: Apache-2.0
// A row of the quantizer, spread over the lanes of a warp: 8 neighbouring channels a lane, as many
// rows as fit. Every operation is rounded by itself, in the order of docs/numerics.md. Next:
// quantize.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "core/problem.h"
#include "engine/cuda/ptx/fragment.h"

namespace fa3::cuda {

constexpr int kChannels = 8;  // of a lane: 16 bytes of 16-bit numbers
constexpr unsigned kAllLanes = 0xffffffffu;

struct Channels {
  float x[kChannels];
};

// Where a lane is. Lanes that are left over stand on a row that nobody has.
struct RowLane {
  int lanes;       // of a row
  int rows;        // of a warp
  int lane;        // within the row
  int row;         // within the warp; `rows` for lanes that are left over
  int first_lane;  // of the row, in the warp

  __device__ explicit RowLane(int64_t dim)
      : lanes(static_cast<int>(dim) / kChannels), rows(kWarpSize / lanes) {
    const int in_warp = static_cast<int>(threadIdx.x) % kWarpSize;
    row = in_warp / lanes;
    lane = in_warp % lanes;
    first_lane = in_warp - lane;
  }
  __device__ bool has_row() const { return row < rows; }
  __device__ int64_t channel() const { return int64_t{lane} * kChannels; }
  // Lane `other` of this row; itself for lanes that are left over.
  __device__ int in_warp(int other) const { return first_lane + (has_row() ? other : lane); }
};

// A lane's channels of a row as they are in memory.
template <class T>
struct Packed {
  uint4 bits[sizeof(T) * kChannels / sizeof(uint4)];
};

template <class T>
__device__ Packed<T> load_packed(const T* from) {
  Packed<T> packed;
#pragma unroll
  for (size_t i = 0; i < sizeof(packed) / sizeof(uint4); ++i) {
    packed.bits[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  return packed;
}

template <class T>
__device__ Channels unpacked(const Packed<T>& packed) {
  const auto* numbers = reinterpret_cast<const T*>(packed.bits);
  Channels to;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) to.x[i] = static_cast<float>(numbers[i]);
  return to;
}

// Rotates by `position`. Every lane of the warp must call it.
__device__ inline void rotate(const Rotary& rotary, int64_t position, const RowLane& at,
                              Channels* row) {
  const float* const cos = rotary.cos + position * rotary.cos_stride;
  const float* const sin = rotary.sin + position * rotary.sin_stride;
  if (rotary.interleaved) {
#pragma unroll
    for (int i = 0; i < kChannels; i += 2) {
      const int64_t pair = (at.channel() + i) / 2;
      if (2 * pair >= rotary.dim) break;
      const float a = row->x[i], b = row->x[i + 1];
      row->x[i] = __fsub_rn(__fmul_rn(a, cos[pair]), __fmul_rn(b, sin[pair]));
      row->x[i + 1] = __fadd_rn(__fmul_rn(b, cos[pair]), __fmul_rn(a, sin[pair]));
    }
    return;
  }
  const int half = static_cast<int>(rotary.dim / 2) / kChannels;  // lanes
  const bool first = at.lane < half, rotated = at.lane < 2 * half;
  const int partner = at.in_warp(!rotated ? at.lane : first ? at.lane + half : at.lane - half);
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    const float other = __shfl_sync(kAllLanes, row->x[i], partner);
    if (!rotated) continue;
    const int64_t pair = at.channel() - (first ? 0 : rotary.dim / 2) + i;
    const float here = __fmul_rn(row->x[i], cos[pair]), there = __fmul_rn(other, sin[pair]);
    row->x[i] = first ? __fsub_rn(here, there) : __fadd_rn(here, there);
  }
}

// The signs of all channels, a bit each, and the rest of what the Hadamard matrix needs: found on
// the host, since every lane would have to hash its channels.
struct Mixing {
  uint8_t negated[kWarpSize] = {};  // by lane of the row
  int block = 1;
  float factor = 1.0f;

  Mixing() = default;
  explicit Mixing(const QuantizeProblem& p)
      : block(static_cast<int>(hadamard_block(p.head_dim))),
        factor(hadamard_factor(hadamard_block(p.head_dim))) {
    for (int64_t c = 0; c < p.head_dim; ++c) {
      if (is_negated(p.seed, c)) negated[c / kChannels] |= uint8_t(1u << c % kChannels);
    }
  }
};

// Signs and Hadamard matrix. Every lane of the warp must call it.
__device__ inline void mix(const Mixing& mixing, const RowLane& at, Channels* row) {
  const unsigned negated = mixing.negated[at.lane];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    row->x[i] = __uint_as_float(__float_as_uint(row->x[i]) ^ (negated >> i & 1) << 31);
  }
#pragma unroll
  for (int stride = 1; stride < kChannels; stride *= 2) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      if ((i & stride) != 0) continue;
      const float a = row->x[i], b = row->x[i + stride];
      row->x[i] = __fadd_rn(a, b);
      row->x[i + stride] = __fsub_rn(a, b);
    }
  }
  for (int bit = 0; kChannels << bit < mixing.block; ++bit) {
    const int partner = at.in_warp(at.lane ^ 1 << bit);
    // other + mine or other - mine, rounded once: one instruction, as long as the compiler does not
    // see that the sign is one of two.
    const float sign = __uint_as_float(0x3f800000u | unsigned(at.lane) >> bit << 31);
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      const float other = __shfl_sync(kAllLanes, row->x[i], partner);
      row->x[i] = __fmaf_rn(row->x[i], sign, other);
    }
  }
#pragma unroll
  for (int i = 0; i < kChannels; ++i) row->x[i] = __fmul_rn(row->x[i], mixing.factor);
}

__device__ inline bool is_finite(float x) {
  return fabsf(x) < __builtin_inff();
}

// The largest finite size; numbers that are not finite become NaN.
__device__ inline float largest_of(Channels* row) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) largest = fmaxf(largest, fabsf(row->x[i]));  // NaN is none
  if (is_finite(largest)) return largest;
  largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    if (!is_finite(row->x[i])) row->x[i] = __int_as_float(0x7fffffff);
    largest = fmaxf(largest, fabsf(row->x[i]));
  }
  return largest;
}

// For numbers that are finite or NaN: infinity would saturate.
__device__ inline void store_e4m3(const Channels& row, float inverse, void* to) {
  union {
    __nv_fp8x2_storage_t pairs[kChannels / 2];
    uint2 all;
  } bytes;
#pragma unroll
  for (int i = 0; i < kChannels; i += 2) {
    bytes.pairs[i / 2] =
        __nv_cvt_float2_to_fp8x2({__fmul_rn(row.x[i], inverse), __fmul_rn(row.x[i + 1], inverse)},
                                 __NV_SATFINITE, __NV_E4M3);
  }
  *static_cast<uint2*>(to) = bytes.all;
}

}  // namespace fa3::cuda
