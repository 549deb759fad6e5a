// SPDX-License-Identifier: Apache-2.0
// Queries of CTAs of 64 rows as operands beside rows of bytes: fp16, and the rope channels bf16.
// All are multiplied by the row's factor (latent_query_factor.cuh): exact for numbers down to 2^-21
// of the largest.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/latent/latent_queries.cuh"
#include "engine/hopper/latent/latent_query_factor.cuh"
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
    const int exponent = largest_exponent<kThreads>(pairs);
    const int to_top = exponent == 0 ? kExponentBias : exponent_to_top(exponent);  // zeros stay
    const float factor = power_of_two(to_top);
    if (thread_ % kThreads == 0) store_factor(tile_row, power_of_two(inverse_exponent(to_top)));
    const uint32_t to = q_ + uint32_t(kQ.chunk_offset(tile_row, channel));
#pragma unroll
    for (int slab = 0; slab < C.slabs(); ++slab) {
#pragma unroll
      for (uint32_t& pair : pairs[slab]) {
        pair = slab < kValueSlabs ? scaled_pair<Element::kFp16>(pair, factor)
                                  : scaled_pair<Element::kBf16>(pair, factor);
      }
      ptx::st_shared_b32x4(to + uint32_t(slab * C.slab_of_q_bytes()), pairs[slab]);
    }
  }
};

}  // namespace fa3::hopper
