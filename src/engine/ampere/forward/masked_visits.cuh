// SPDX-License-Identifier: Apache-2.0
// Under a block mask a CTA visits those blocks of its keys that the mask shows. They count down
// without gaps, as dense ones do, to 0; here is which block each visit has. A thread
// looks two visits ahead and leaves what it finds in shared memory: whoever passes the next block's
// barrier reads it. Next: key_tiles.cuh.
#pragma once

#include "engine/ampere/config/forward_config.h"
#include "engine/ampere/forward_params.h"
#include "engine/cuda/lists/map_entry.h"

namespace fa3::ampere {

class MaskedVisits {
 public:
  // Finds which of the first `num_blocks` from first_key on the tile's queries see, and returns
  // how many these are. One thread calls it.
  template <ForwardConfig C>
  __device__ __forceinline__ int find(const ForwardParams& params, const TileOfSequence& tile,
                                      int first_key, int num_blocks) {
    static_assert(kMaskBlock % C.block_m == 0 && kMaskBlock % C.block_n == 0);
    range_blocks_ = num_blocks;
    query_block_ = params.output.pack.query(tile.first_row) / kMaskBlock;
    Found found{num_blocks, nullptr};
    int count = 0;
    while (next<C>(params, tile, first_key, found)) ++count;
    found.block = num_blocks;
    for (int number = count - 1; number >= 0 && number >= count - kAhead; --number) {
      next<C>(params, tile, first_key, found);
      at(number) = found;
    }
    return count;
  }

  // By the same thread, in the visit of this number, behind its barrier.
  template <ForwardConfig C>
  __device__ __forceinline__ void look_ahead(const ForwardParams& params,
                                             const TileOfSequence& tile, int first_key,
                                             int number) {
    if (number < kAhead) return;
    Found found = at(number - kAhead + 1);
    next<C>(params, tile, first_key, found);
    at(number - kAhead) = found;
  }

  __device__ __forceinline__ int range_blocks() const { return range_blocks_; }
  __device__ __forceinline__ int block(int number) const { return found_[number % kKept].block; }
  // The bits of the mask's block, for its queries and keys; null: all are seen.
  __device__ __forceinline__ const uint32_t* bits(int number) const {
    return found_[number % kKept].bits;
  }

 private:
  static constexpr int kAhead = 2, kKept = 4;
  struct Found {
    int block;
    const uint32_t* bits;
  };

  __device__ __forceinline__ Found& at(int number) { return found_[number % kKept]; }

  // The first block below that is seen; false: none is.
  template <ForwardConfig C>
  __device__ __forceinline__ bool next(const ForwardParams& params, const TileOfSequence& tile,
                                       int first_key, Found& found) const {
    int block = found.block - 1;
    while (block >= 0) {
      const int key_block = (first_key + block * C.block_n) / kMaskBlock;
      const MapEntry entry =
          map_entry(params.block_mask, tile.sequence, tile.pack, query_block_, key_block);
      if (entry.seen()) {
        found = {block, entry.bits};
        return true;
      }
      // To the last block of keys that the entry before has.
      block = (key_block * kMaskBlock - first_key) / C.block_n - 1;
    }
    return false;
  }

  int range_blocks_;
  int query_block_;
  Found found_[kKept];
};

}  // namespace fa3::ampere
