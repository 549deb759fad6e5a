// SPDX-License-Identifier: Apache-2.0
// Queries of CTAs of 64 rows as operands beside rows of bytes: fp16, and the rope channels bf16. A
// row is multiplied by the power of two that brings its largest number to 2^7..2^8: exact for
// numbers down to 2^-21 of the largest.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/latent/latent_queries.cuh"
#include "engine/hopper/ptx/smem.cuh"

namespace fa3::hopper {

template <LatentShape C>
class LatentScaledQueries : protected LatentQueries<C, C.consumer_threads()> {
 protected:
  using Queries = LatentQueries<C, C.consumer_threads()>;
  using Queries::params_, Queries::tile_, Queries::first_row_, Queries::q_, Queries::thread_;
  using Queries::Queries;

  // Eight neighbouring threads have a row. Rows behind the last are zeros. `store_factor` gets a
  // row, and what undoes its factor. The caller's barrier follows.
  template <class StoreFactor>
  __device__ __forceinline__ void load_scaled_queries(const StoreFactor& store_factor) {
#pragma unroll 1
    for (int i = 0; i < C.rows; i += C.consumer_threads() / kThreads) {
      load_row(i + thread_ / kThreads, store_factor);
    }
    ptx::fence_proxy_async();
  }

 private:
  static constexpr int kThreads = 8, kChunkChannels = tile::kChunkBytes / 2;  // of a row
  static_assert(kThreads * kChunkChannels == kSlabChannels);
  // Exponents of floats, with their bias.
  static constexpr int kBias = 127, kMantissaBits = 23, kTop = 7;

  static __device__ __forceinline__ float power(int exponent) {
    return __uint_as_float(uint32_t(exponent) << kMantissaBits);
  }
  static __device__ __forceinline__ float low_of(uint32_t pair) {
    return __uint_as_float(pair << 16);
  }
  static __device__ __forceinline__ float high_of(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
  }

  template <class StoreFactor>
  __device__ __forceinline__ void load_row(int tile_row, const StoreFactor& store_factor) const {
    constexpr tile::TileLayout kQ{C.rows, kSlabChannels};
    const MlaProblem& p = params_.problem;
    const int row = first_row_ + tile_row, channel = thread_ % kThreads * kChunkChannels;
    const bool exists = row < tile_.rows;
    const ResultRow at = result_row(params_, tile_, exists ? row : 0);
    const uint16_t* const own = p.q.at<uint16_t>(at.b, at.row, at.head) + channel;
    const uint16_t* const rope = p.q_rope_dim > 0
                                     ? p.q_rope.at<uint16_t>(at.b, at.row, at.head) + channel
                                     : own + kLatentValueDim;
    uint32_t pairs[C.slabs()][4];
#pragma unroll
    for (int slab = 0; slab < C.slabs(); ++slab) {
      cuda::load_global_if(exists, slab < kValueSlabs ? own + slab * kSlabChannels : rope,
                           pairs[slab]);
    }
    float most = 0.0f;
#pragma unroll
    for (const uint32_t(&chunk)[4] : pairs) {
#pragma unroll
      for (const uint32_t pair : chunk) {
        most = fmaxf(most, fmaxf(fabsf(low_of(pair)), fabsf(high_of(pair))));
      }
    }
#pragma unroll
    for (int distance = 1; distance < kThreads; distance *= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, distance));
    }
    // Infinity is left as it is, whatever the factor, and so are zeros.
    const int exponent = min(int(__float_as_uint(most) >> kMantissaBits), 2 * kBias);
    const int to_top = exponent == 0 ? kBias : min(2 * kBias + kTop - exponent, 2 * kBias - 1);
    const float factor = power(to_top);
    if (thread_ % kThreads == 0) store_factor(tile_row, power(2 * kBias - to_top));
    const uint32_t to = q_ + uint32_t(kQ.chunk_offset(tile_row, channel));
#pragma unroll
    for (int slab = 0; slab < C.slabs(); ++slab) {
#pragma unroll
      for (uint32_t& pair : pairs[slab]) {
        const float low = low_of(pair) * factor, high = high_of(pair) * factor;
        pair = slab < kValueSlabs ? cuda::pack_pair<Element::kFp16>(low, high)
                                  : cuda::pack_pair<Element::kBf16>(low, high);
      }
      ptx::st_shared_b32x4(to + uint32_t(slab * C.slab_of_q_bytes()), pairs[slab]);
    }
  }
};

}  // namespace fa3::hopper
