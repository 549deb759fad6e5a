// SPDX-License-Identifier: Apache-2.0
// Dropout on a warp's 16 x 16 scores, which its threads hold as fragment.h says: 8 a thread, the
// draws of one Philox call (core/dropout.h). Rows are queries in the forward, keys in the backward.
#pragma once

#include "core/dropout.h"
#include "engine/cuda/fragment.h"

namespace fa3::cuda {

// A call's draws, and what they are compared with.
class DropoutDraws {
 public:
  __device__ __forceinline__ explicit DropoutDraws(const Dropout& dropout)
      : key_(dropout.call_key()), least_kept_(dropout.threshold << 16) {}

  __device__ __forceinline__ void set_head(int sequence, int head) {
    sequence_ = uint32_t(sequence), head_ = uint32_t(head);
  }
  // Of the queries q and q + 8 and the keys k, k + 1, k + 8 and k + 9: two bits less of each.
  __device__ __forceinline__ PhiloxWords words(int query_cell, int key_cell) const {
    return philox4x32<7>({{head_, uint32_t(key_cell), sequence_, uint32_t(query_cell)}}, key_);
  }
  // The draw in the lower or the upper half of a word.
  __device__ __forceinline__ bool drops_low(uint32_t word) const {
    return (word << 16) < least_kept_;
  }
  __device__ __forceinline__ bool drops_high(uint32_t word) const { return word < least_kept_; }

 private:
  PhiloxKey key_;
  uint32_t least_kept_;  // in the upper half
  uint32_t sequence_ = 0, head_ = 0;
};

// Accumulator rows are queries.
class QueryRowDropout {
 public:
  __device__ __forceinline__ explicit QueryRowDropout(const Dropout& dropout) : draws_(dropout) {}

  // first_row: of this warp in its sequence; first_key: from which drop() counts. Multiples of 16.
  __device__ __forceinline__ void set_tile(int sequence, int head, int first_row, int first_key) {
    draws_.set_head(sequence, head);
    query_cell_ = first_row / 2 + fragment_row(int(threadIdx.x % kWarpSize));
    key_cell_ = first_key / 4 + int(threadIdx.x % kQuadLanes);
  }

  // first_key: of the block, a multiple of 16.
  template <int Count>
  __device__ __forceinline__ void drop(float (&p)[Count], int first_key) const {
    static_assert(Count % 8 == 0);
    const int first_cell = key_cell_ + first_key / 4;
#pragma unroll
    for (int i = 0; i < Count; i += 8) {
      const PhiloxWords w = draws_.words(query_cell_, first_cell + i / 2);
#pragma unroll
      for (int j = 0; j < 8; ++j) {  // key bit j % 2, query j / 2 % 2, key group j / 4
        const uint32_t word = w.word[j % 2 * 2 + j / 4];
        const bool dropped = j / 2 % 2 == 0 ? draws_.drops_low(word) : draws_.drops_high(word);
        if (dropped) p[i + j] = 0.0f;
      }
    }
  }

 private:
  DropoutDraws draws_;
  int query_cell_ = 0, key_cell_ = 0;
};

// Accumulator rows are keys.
class KeyRowDropout {
 public:
  // first_key: of this warp in its sequence, a multiple of 16.
  __device__ __forceinline__ KeyRowDropout(const Dropout& dropout, int first_key)
      : keep_scale(dropout.keep_scale), draws_(dropout) {
    const int row = fragment_row(int(threadIdx.x % kWarpSize));
    odd_ = row % 2 != 0;
    key_cell_ = first_key / 4 + row / 2;
  }
  __device__ __forceinline__ void set_head(int sequence, int head) {
    draws_.set_head(sequence, head);
  }

  // The signs of a thread's 8 scores of 16 queries: set where one is dropped. A thread makes the
  // draws of an even key's query and of the odd key's next one, and trades half with its neighbour.
  __device__ __forceinline__ void signs(uint32_t (&sign)[8], int first_query) const {
    const int query = int(threadIdx.x % kQuadLanes) * 2 + odd_;
    const PhiloxWords w = draws_.words(first_query / 2 + query, key_cell_);
    uint32_t words[2][2];  // of the even and the odd query, for keys 8 apart
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t mine = odd_ ? w.word[2 + i] : w.word[i];
      const uint32_t other =
          __shfl_xor_sync(0xffffffff, odd_ ? w.word[i] : w.word[2 + i], kQuadLanes);
      words[0][i] = odd_ ? other : mine;
      words[1][i] = odd_ ? mine : other;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // query bit j % 2, key j / 2 % 2, query group j / 4
      const uint32_t word = words[j % 2][j / 2 % 2];
      const bool dropped = j / 4 == 0 ? draws_.drops_low(word) : draws_.drops_high(word);
      sign[j] = dropped ? 0x80000000u : 0u;
    }
  }

  const float keep_scale;

 private:
  DropoutDraws draws_;
  bool odd_;
  int key_cell_;
};

}  // namespace fa3::cuda
