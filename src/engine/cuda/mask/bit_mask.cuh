// SPDX-License-Identifier: Apache-2.0
// The bits of a partly seen block on a tile of scores in registers: a thread takes those of its two
// rows, or of its columns where rows are keys. Next: mask.cuh.
#pragma once

#include "core/mask/block_mask.h"
#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/ptx/smem.cuh"
#include "engine/cuda/softmax/constants.h"

namespace fa3::cuda {

inline constexpr int kMaskBits = kMaskBlockWords * int(sizeof(uint32_t));  // bytes

// Where a block has a query's bits from a key on, in bytes.
FA3_HD constexpr uint32_t offset_of_bits(int query, int key) {
  return uint32_t(query * kMaskRowWords * int(sizeof(uint32_t)) + key / 8);
}

// The words of a thread's two rows, of as many keys as a tile of scores has.
template <int Words>
struct RowBitsOf {
  uint32_t words[kRowsPerThread][Words];

  // `smem`: of the block; first_key: the tile's first, of the block's; first_row: of the 64 that
  // `thread` of a warpgroup holds rows of.
  __device__ __forceinline__ void load(uint32_t smem, int first_row, int first_key, int thread) {
    static_assert(Words == 2 || Words == kMaskRowWords);
    const uint32_t row = smem + offset_of_bits(first_row + fragment_row(thread), first_key);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const uint32_t at = row + offset_of_bits(r * kRowDistance, 0);
      if constexpr (Words == 2) {
        ld_shared_b32x2(at, words[r]);
      } else {
        ld_shared_b32x4(at, words[r]);
      }
    }
  }

  // Scores of hidden pairs become -inf.
  template <int Count>
  __device__ __forceinline__ void hide(float (&scores)[Count], int thread) const {
    static_assert(Count == Words * 16);
    uint32_t moved[kRowsPerThread][Words];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
#pragma unroll
      for (int w = 0; w < Words; ++w) moved[r][w] = words[r][w] >> fragment_lane_column(thread);
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const int column = fragment_column(i);
      const uint32_t word = moved[fragment_row_index(i)][column / 32];
      if ((word & (1u << (column % 32))) == 0) scores[i] = -kInfinity;
    }
  }
};

// A tile whose rows are keys and whose columns are queries, the first of them that of `bits`, in
// global memory: scores of hidden pairs become -inf. first_key: of the block's, the first of the 64
// that `thread` of a warpgroup holds.
template <int Count>
__device__ __forceinline__ void hide_transposed(float (&scores)[Count], const uint32_t* bits,
                                                int first_key, int thread) {
  static_assert(kRowsPerWarp == 2 * kRowDistance && 32 % kRowsPerWarp == 0);
  const int key = first_key + fragment_row(thread);
  // The key kRowDistance further on has its bit in this word too.
  const uint32_t* const words = bits + fragment_lane_column(thread) * kMaskRowWords + key / 32;
  const uint32_t bit[kRowsPerThread] = {1u << (key % 32), 1u << (key % 32 + kRowDistance)};
#pragma unroll
  for (int i = 0; i < Count; i += 4) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t word = words[fragment_column(i + j) * kMaskRowWords];
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        if ((word & bit[r]) == 0) scores[i + j + 2 * r] = -kInfinity;
      }
    }
  }
}

}  // namespace fa3::cuda
