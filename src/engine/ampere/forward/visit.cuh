// SPDX-License-Identifier: Apache-2.0
// A key block that a CTA visits, and which is the next: of its range every block, from the last to
// the first, or those alone that a block mask shows. All threads of the CTA know the same. Next:
// key_tiles.cuh.
#pragma once

#include "engine/ampere/forward/tile_work.cuh"
#include "engine/cuda/mask/map_entry.h"

namespace fa3::ampere {

template <ForwardConfig C, bool Masked = C.block_mask>
struct Visit {
  int block;  // of the CTA's; below 0 there are none

  __device__ __forceinline__ static Visit first(const ForwardParams&, const TileWork<C>&,
                                                int num_blocks) {
    return {num_blocks - 1};
  }
  __device__ __forceinline__ Visit next(const ForwardParams&, const TileWork<C>&) const {
    return {block - 1};
  }
  __device__ __forceinline__ bool is_first(int num_blocks) const { return block == num_blocks - 1; }
  __device__ __forceinline__ int stage() const { return block % C.stages; }
};

template <ForwardConfig C>
struct Visit<C, true> {
  static_assert(kMaskBlock % C.block_m == 0 && kMaskBlock % C.block_n == 0);
  int block;
  int number;            // of the visit
  const uint32_t* bits;  // of the queries and keys of the mask's block; null: all are seen

  __device__ __forceinline__ static Visit first(const ForwardParams& params,
                                                const TileWork<C>& work, int num_blocks) {
    return of(params, work, num_blocks - 1, 0);
  }
  __device__ __forceinline__ Visit next(const ForwardParams& params,
                                        const TileWork<C>& work) const {
    return of(params, work, block - 1, number + 1);
  }
  __device__ __forceinline__ bool is_first(int) const { return number == 0; }
  __device__ __forceinline__ int stage() const { return number % C.stages; }

 private:
  // The first from `block` down that is seen.
  __device__ __forceinline__ static Visit of(const ForwardParams& params, const TileWork<C>& work,
                                             int block, int number) {
    const BlockMask& mask = params.block_mask;
    while (block >= 0) {
      const int key_block = (work.first_key + block * C.block_n) / kMaskBlock;
      const MapEntry entry =
          map_entry(mask, work.tile.sequence, work.tile.pack,
                    params.output.pack.query(work.tile.first_row) / kMaskBlock, key_block);
      if (entry.seen()) return {block, number, entry.bits};
      // To the last block of keys that the entry before has.
      const int before = key_block * kMaskBlock - work.first_key;
      block = before / C.block_n - 1;
    }
    return {-1, number, nullptr};
  }
};

}  // namespace fa3::ampere
