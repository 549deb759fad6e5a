// SPDX-License-Identifier: Apache-2.0
// The 16 query rows of a consumer beside rows of bytes, as operands in shared memory: values in
// fp16, multiplied by a factor of each row (latent_query_factor.cuh), and the rope channels as they
// are. A number down to 2^-25 of the row's largest stays exact; below that the error is at most
// 2^-34 of the largest.
//
// Where a channel stands is free, if keys and queries agree (latent_byte_rows.cuh): chunks 2 s and
// 2 s + 1 of a slab have the channels of product s, lane by lane.
#pragma once

#include "engine/hopper/latent/latent_query_factor.cuh"
#include "engine/hopper/latent/narrow/latent_scores.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

template <LatentShape C>
class LatentByteQueries : protected LatentScores<C> {
 protected:
  using Scores = LatentScores<C>;
  using Scores::params_, Scores::q_, Scores::thread_, Scores::tile_, Scores::first_row_;
  using Scores::Scores;
  static constexpr bool kHasRope = C.slabs() > kValueSlabs;
  static constexpr tile::TileLayout kQLayout{Scores::kRows, kSlabChannels};

  // A warp has four rows. Of each, eight lanes have 16 bytes of every slab of Q and of the rope
  // channels. Rows behind the last are zeros. `store_factor` gets a row, and what undoes its
  // factor. The caller's barrier follows.
  template <class StoreFactor>
  __device__ __forceinline__ void load_queries(const StoreFactor& store_factor) {
    constexpr int kLanes = 8, kChunkChannels = 8;
    const MlaProblem& p = params_.problem;
    const int own_row = thread_ / kLanes, own = ptx::lane() % kLanes;
    const int row = first_row_ + own_row, token = row / params_.heads;
    const int64_t b = p.lengths_q.packed() ? 0 : tile_.b, head = row - token * params_.heads;
    const bool exists = row < tile_.rows;
    const uint16_t *from = nullptr, *rope_from = nullptr;
    if (exists) {
      from = p.q.at<uint16_t>(b, tile_.first_token + token, head);
      rope_from = p.q_rope_dim == 0 ? from + kLatentValueDim
                                    : p.q_rope.at<uint16_t>(b, tile_.first_token + token, head);
    }
    // Slab 2 g + n has of group g the words 8 n to 8 n + 7 and those 16 behind.
    const int in_group = own / 4 * kSlabChannels + own % 4 * kChunkChannels;
    uint32_t values[kValueSlabs][4], rope[4];
#pragma unroll
    for (int slab = 0; slab < kValueSlabs; ++slab) {
      const int first = slab / 2 * Group128::kGroupChannels + slab % 2 * 32;
      cuda::load_global_if(exists, from + first + in_group, values[slab]);
    }
    if constexpr (kHasRope) {
      cuda::load_global_if(exists, rope_from + own * kChunkChannels, rope);
    }
    const int to_top = exponent_to_top(largest_exponent<kLanes>(values));
    const float factor = power_of_two(to_top);
    if (own == 0) store_factor(own_row, power_of_two(inverse_exponent(to_top)));
    // 16 bytes are what one lane has in two products, and what two lanes have in one of the rope's.
    const int lane = own / 4 * 2 + own % 2, chunk = own % 4 / 2 * 4;
#pragma unroll
    for (int slab = 0; slab < kValueSlabs; ++slab) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_query(own_row, slab, chunk + i, lane,
                    scaled_pair<Element::kFp16>(values[slab][i], factor));
      }
    }
    if constexpr (kHasRope) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_query(own_row, kValueSlabs, own % 4 * 2 + i % 2, own / 4 * 2 + i / 2, rope[i]);
      }
    }
    ptx::fence_proxy_async();
  }

 private:
  // Stores two channels.
  __device__ __forceinline__ void store_query(int row, int slab, int chunk, int lane,
                                              uint32_t pair) const {
    constexpr tile::TileLayout kQ = kQLayout;
    ptx::st_shared_b32(q_ + uint32_t(slab * C.slab_of_q_bytes() + row * kQ.row_bytes() +
                                     kQ.swizzled_chunk(chunk, row) * tile::kChunkBytes + lane * 4),
                       pair);
  }
};

}  // namespace fa3::hopper
