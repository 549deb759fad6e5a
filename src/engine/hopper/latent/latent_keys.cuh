// SPDX-License-Identifier: Apache-2.0
// Where a loader's thread finds its keys of a block: `Own` of them, `Distance` apart.
#pragma once

#include "engine/hopper/latent/latent_params.h"

namespace fa3::hopper {

template <int Own, int Distance>
class LatentKeys {
 public:
  // Where a key lies. One that does not exist has an address that nothing is read from.
  struct Place {
    const std::byte* latent;
    const std::byte* rope;
    bool exists;
  };

  __device__ __forceinline__ LatentKeys(const LatentParams& params, int first)
      : params_(params), first_(first) {}

  // The thread's first key of a block.
  __device__ __forceinline__ int first() const { return first_; }

  // Their pages, or slots of the cache.
  __device__ __forceinline__ void look_up(const LatentTile& tile, int block,
                                          int (&slots)[Own]) const {
    const MlaProblem& p = params_.problem;
    const int32_t* const entries = p.sparse ? p.keys.of(tile.b, tile.first_token)
                                            : p.places.page_table + tile.b * p.places.table_stride;
#pragma unroll
    for (int i = 0; i < Own; ++i) {
      const int key = number_of(block, i);
      slots[i] = kNone;
      if (key < tile.end) slots[i] = __ldg(entries + (p.sparse ? key : key / params_.page_size));
    }
  }

  __device__ __forceinline__ void find(int block, const int (&slots)[Own],
                                       Place (&places)[Own]) const {
#pragma unroll
    for (int i = 0; i < Own; ++i) places[i] = place_of(block, i, slots[i]);
  }
  __device__ __forceinline__ Place place_of(int block, int i, int slot) const {
    const LatentCache& cache = params_.problem.keys.cache;
    const bool sparse = params_.problem.sparse;
    const int of = sparse ? slot : number_of(block, i);
    const int page = sparse && slot >= 0 ? slot / params_.page_size : slot;
    const int64_t row = of < 0 ? 0 : of % params_.page_size;
    const bool exists = page >= 0 && page < cache.pages;
    const int64_t in_cache = exists ? page : 0;
    return {cache.latent.at(in_cache, row), cache.rope.at(in_cache, row), exists};
  }

 private:
  static constexpr int kNone = -1;

  __device__ __forceinline__ int number_of(int block, int i) const {
    return block * kLatentBlockKeys + i * Distance + first_;
  }

  const LatentParams& params_;
  const int first_;
};

}  // namespace fa3::hopper
