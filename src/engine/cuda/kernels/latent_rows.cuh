// SPDX-License-Identifier: Apache-2.0
// A warp writes or reads a row of a latent cache, as cpu/latent/rows.cpp does and with its bits: a
// lane has 16 neighbours of the latent channels and two rope channels. The arrays may hold
// anything: a slot that the cache has not is not written, and read as zeros; a position beyond the
// tables is their last. Next: latent_rows.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "core/latent.h"
#include "engine/cuda/ptx/fragment.h"

namespace fa3::cuda {

constexpr int kLaneChannels = int(kLatentValueDim) / kWarpSize;
constexpr unsigned kWholeWarp = 0xffffffff;

// Sixteen bytes of memory that may lie anywhere.
union Chunk {
  uint4 words;
  uint8_t bytes[16];
};
__device__ inline Chunk load_chunk(const void* from) {
  Chunk chunk;
  if (reinterpret_cast<uintptr_t>(from) % sizeof(Chunk) == 0) {
    chunk.words = *static_cast<const uint4*>(from);
  } else {
    for (int i = 0; i < 16; ++i) chunk.bytes[i] = static_cast<const uint8_t*>(from)[i];
  }
  return chunk;
}
__device__ inline void store_chunk(const Chunk& chunk, void* to) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(Chunk) == 0) {
    *static_cast<uint4*>(to) = chunk.words;
  } else {
    for (int i = 0; i < 16; ++i) static_cast<uint8_t*>(to)[i] = chunk.bytes[i];
  }
}

// A lane's latent channels.
template <class T>
struct LaneNumbers {
  Chunk chunks[kLaneChannels * sizeof(T) / sizeof(Chunk)];

  __device__ T& operator[](int i) { return reinterpret_cast<T*>(chunks)[i]; }
  __device__ void load(const T* from) {
    for (size_t i = 0; i < sizeof(chunks) / sizeof(Chunk); ++i) {
      chunks[i] = load_chunk(reinterpret_cast<const Chunk*>(from) + i);
    }
  }
  __device__ void store(T* to) const {
    for (size_t i = 0; i < sizeof(chunks) / sizeof(Chunk); ++i) {
      store_chunk(chunks[i], reinterpret_cast<Chunk*>(to) + i);
    }
  }
};

struct E4M3 {
  __nv_fp8_storage_t bits;
};
__device__ inline float widened_number(E4M3 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
}
template <class T>
__device__ float widened_number(T x) {
  return float(x);
}

// Saturates; NaN has no sign.
__device__ inline E4M3 saturated(float x) {
  return {isnan(x) ? __nv_fp8_storage_t{0x7f}
                   : __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
}
template <class T>
__device__ T narrowed_number(float x) {
  return T(x);
}
template <>
__device__ inline E4M3 narrowed_number<E4M3>(float x) {
  return saturated(x);
}

// Calls `action` with a number of the type.
template <class Action>
__device__ void with_type(DType dtype, const Action& action) {
  switch (dtype) {
    case DType::float16:
      return action(__half{});
    case DType::bfloat16:
      return action(__nv_bfloat16{});
    case DType::float8_e4m3:
      return action(E4M3{});
    default:
      return action(float{});
  }
}

__device__ inline float scale_at(const RowScales& scales, const std::byte* at, int64_t group) {
  if (scales.data == nullptr) return 1;
  if (!scales.e8m0) return reinterpret_cast<const float*>(at)[group];
  const uint32_t exponent = uint32_t(at[group]);
  if (exponent == 0xff) return __uint_as_float(0x7fc00000);
  return __uint_as_float(exponent == 0 ? 0x00400000 : exponent << 23);  // 0: 2^-127
}

// The smallest power of two that is not below x > 0; x where it is not finite.
__device__ inline float power_of_two_from(float x) {
  const uint32_t bits = __float_as_uint(x);
  if (bits >= 0x7f800000u || (bits & 0x7fffffu) == 0) return x;
  return __uint_as_float((bits & 0x7f800000u) + 0x800000u);
}

// From the largest number of a group, NaN left out.
__device__ inline float scale_of_largest(float largest, bool has_nan, fa3_mla_scaling scaling) {
  constexpr float kMost = 448, kSmallest = 0x1p-126f, kSmallestOfPow2 = 1e-4f;
  if (scaling == FA3_MLA_SCALING_EXACT) return fmaxf(largest / kMost, kSmallest);
  if (has_nan) return __uint_as_float(0x7fc00000);
  return power_of_two_from(scaling == FA3_MLA_SCALING_POW2_SMALL
                               ? fmaxf(largest, kSmallestOfPow2) / kMost
                               : fmaxf(largest / kMost, kSmallestOfPow2));
}

// ---- Append ----

// The latent channels. Lanes behind the last one of them have zeros, and store nothing.
template <class T>
__device__ void append_latent(const RowPart& part, int64_t page, int64_t row, const T* from,
                              fa3_mla_scaling scaling) {
  const int lane = int(threadIdx.x) % kWarpSize, first = lane * kLaneChannels;
  const bool has_channels = first < part.channels;
  float x[kLaneChannels] = {};
  if (has_channels) {
    LaneNumbers<T> numbers;
    numbers.load(from + first);
    for (int i = 0; i < kLaneChannels; ++i) x[i] = widened_number(numbers[i]);
  }
  const RowScales& scales = part.scales;
  std::byte* const at = scales.data != nullptr ? scales.at(page, row) : nullptr;
  const int64_t group = first / scales.channels;
  float scale = 1;
  if (scales.written) {
    float largest = 0;
    int has_nan = 0;
    for (const float number : x) {
      largest = fmaxf(largest, fabsf(number));  // not of NaN
      has_nan |= isnan(number);
    }
    const int lanes = int(scales.channels) / kLaneChannels;
    for (int distance = 1; distance < lanes; distance *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, distance));
      has_nan |= __shfl_xor_sync(kWholeWarp, has_nan, distance);
    }
    scale = scale_of_largest(largest, has_nan != 0, scaling);
    if (lane % lanes == 0) {
      if (scales.e8m0) {  // the bytes behind the last group are padding
        const bool pads = !has_channels && group < scales.row_stride;
        if (has_channels)
          at[group] = std::byte(isfinite(scale) ? __float_as_uint(scale) >> 23 : 0xff);
        if (pads) at[group] = std::byte{};
      } else if (has_channels) {
        reinterpret_cast<float*>(at)[group] = scale;
      }
    }
  } else if (has_channels) {
    scale = scale_at(scales, at, group);
  }
  if (!has_channels) return;
  with_type(part.dtype, [&]<class To>(To) {
    LaneNumbers<To> numbers;
    for (int i = 0; i < kLaneChannels; ++i) {
      numbers[i] = narrowed_number<To>(scales.data != nullptr ? x[i] / scale : x[i]);
    }
    numbers.store(reinterpret_cast<To*>(part.at(page, row)) + first);
  });
}

// Turns the 64 channels of `from` by a position of the tables; a lane reads its two numbers before
// it writes any: `to` may be `from`. Without tables it copies; without `from`, zeros.
template <class T, class Store>
__device__ void turn_rope(const RotaryTables& rotary, int64_t position, const T* from,
                          const Store& store) {
  const int lane = int(threadIdx.x) % kWarpSize;
  const bool turns = lane < rotary.pairs;
  int first = 2 * lane, second = 2 * lane + 1;
  if (turns && !rotary.interleaved) first = lane, second = lane + int(rotary.pairs);
  const float x = from != nullptr ? widened_number(from[first]) : 0;
  const float y = from != nullptr ? widened_number(from[second]) : 0;
  __syncwarp();
  if (!turns || from == nullptr) {
    store(first, x), store(second, y);
    return;
  }
  const int64_t last = rotary.positions - 1;
  const int64_t at = position < 0 ? 0 : position < last ? position : last;
  float c = 0, s = 0;
  with_type(rotary.dtype, [&]<class Table>(Table) {
    c = widened_number(static_cast<const Table*>(rotary.cos)[at * rotary.cos_stride + lane]);
    s = widened_number(static_cast<const Table*>(rotary.sin)[at * rotary.sin_stride + lane]);
  });
  store(first, __fsub_rn(__fmul_rn(x, c), __fmul_rn(y, s)));
  store(second, __fadd_rn(__fmul_rn(x, s), __fmul_rn(y, c)));
}

template <class T>
__device__ void append_latent_row(const MlaAppendProblem& p, int64_t i) {
  const int64_t slot = p.slots[i];
  if (slot < 0 || slot / p.cache.page_size >= p.cache.pages) return;
  const int64_t page = slot / p.cache.page_size, row = slot % p.cache.page_size;
  append_latent(p.cache.latent, page, row, static_cast<const T*>(p.c_kv) + i * p.c_kv_stride,
                p.scaling);
  const RowPart& rope = p.cache.rope;
  if (rope.channels == 0) return;
  const T* const k_pe =
      p.k_pe != nullptr ? static_cast<const T*>(p.k_pe) + i * p.k_pe_stride : nullptr;
  const float scale =
      rope.scales.data != nullptr ? scale_at(rope.scales, rope.scales.at(page, row), 0) : 1;
  const int64_t position = p.rotary.pairs > 0 ? p.positions[i] : 0;
  with_type(rope.dtype, [&]<class To>(To) {
    To* const to = reinterpret_cast<To*>(rope.at(page, row));
    turn_rope(p.rotary, position, k_pe, [&](int channel, float x) {
      to[channel] = narrowed_number<To>(rope.scales.data != nullptr ? x / scale : x);
    });
  });
}

template <class T>
__device__ void turn_latent_query(const MlaAppendProblem& p, int64_t i, int64_t head) {
  T* const to = p.q_pe_rotated.at<T>(0, i, head);
  turn_rope(p.rotary, p.positions[i], p.q_pe.at<T>(0, i, head),
            [&](int channel, float x) { to[channel] = narrowed_number<T>(x); });
}

// ---- Gather ----

template <class T>
__device__ void gather_latent_row(const MlaGatherProblem& p, int64_t i) {
  const int lane = int(threadIdx.x) % kWarpSize, first = lane * kLaneChannels;
  const int64_t slot = p.slots[i], page = slot / p.cache.page_size, row = slot % p.cache.page_size;
  const bool exists = slot >= 0 && page < p.cache.pages;
  T* const to = p.o.at<T>(0, i, 0);
  const RowPart &latent = p.cache.latent, &rope = p.cache.rope;
  if (first < latent.channels) {
    LaneNumbers<T> numbers;
    for (int c = 0; c < kLaneChannels; ++c) numbers[c] = narrowed_number<T>(0);
    if (exists) {
      const RowScales& scales = latent.scales;
      const float scale = scales.data != nullptr
                              ? scale_at(scales, scales.at(page, row), first / scales.channels)
                              : 1;
      with_type(latent.dtype, [&]<class From>(From) {
        LaneNumbers<From> from;
        from.load(reinterpret_cast<const From*>(latent.at(page, row)) + first);
        for (int c = 0; c < kLaneChannels; ++c) {
          numbers[c] = narrowed_number<T>(__fmul_rn(widened_number(from[c]), scale));
        }
      });
    }
    numbers.store(to + first);
  }
  if (rope.channels == 0) return;
  const float scale = exists && rope.scales.data != nullptr
                          ? scale_at(rope.scales, rope.scales.at(page, row), 0)
                          : 1;
  with_type(rope.dtype, [&]<class From>(From) {
    for (int c = 2 * lane; c < 2 * lane + 2; ++c) {
      const float x =
          exists ? widened_number(reinterpret_cast<const From*>(rope.at(page, row))[c]) : 0;
      to[latent.channels + c] = narrowed_number<T>(__fmul_rn(x, scale));
    }
  });
}

}  // namespace fa3::cuda
