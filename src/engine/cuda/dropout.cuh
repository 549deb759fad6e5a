// SPDX-License-Identifier: Apache-2.0
// Dropout of a warp's scores, 16 queries by 16 keys at a time, which its threads hold as fragment.h
// says: 8 each, the draws of one call of the generator (core/dropout.h). Scores with queries as the
// accumulator's rows are dropped in place; with keys as rows they get a sign.
#pragma once

#include "engine/cuda/dropout.h"
#include "engine/cuda/fragment.h"

namespace fa3::cuda {

inline constexpr int kDrawColumns = 16;  // queries, and keys, of a thread's 8 draws
inline constexpr int kDraws = 8;

// Whether the draw in one half of a word drops its score.
class DropoutThreshold {
 public:
  __device__ __forceinline__ explicit DropoutThreshold(const Dropout& dropout)
      : least_kept_(dropout.threshold << 16) {}

  __device__ __forceinline__ bool drops(uint32_t word, int half) const {
    return (half == 0 ? word << 16 : word) < least_kept_;
  }

 private:
  uint32_t least_kept_;  // in the upper half
};

// Accumulator rows are queries.
class QueryRowDropout {
 public:
  __device__ __forceinline__ explicit QueryRowDropout(const DropoutParams& params)
      : threshold_(params.dropout), call_key_(params.dropout.call_key()) {}

  // first_row: of this warp in its sequence; first_key: from which drop() counts. Multiples of 16.
  __device__ __forceinline__ void set_tile(int sequence, int head, int first_row, int first_key) {
    const int lane = int(threadIdx.x % kWarpSize);
    head_ = dropout_head(call_key_, sequence, head);
    query_ = dropout_query(head_, dropout_query_word(first_row + fragment_row(lane)));
    key_word_ = dropout_key_word(first_key + fragment_lane_column(lane));
  }

  // P of the keys from first_key on, a multiple of 16.
  template <int Count>
  __device__ __forceinline__ void drop(float (&p)[Count], int first_key) const {
    static_assert(Count % kDraws == 0);
#pragma unroll
    for (int i = 0; i < Count; i += kDraws) {
      const uint32_t word = key_word_ + dropout_key_word(first_key + fragment_column(i));
      const PhiloxWords words = dropout_words(query_, dropout_key(head_, word), call_key_);
#pragma unroll
      for (int j = 0; j < kDraws; ++j) {
        const uint32_t drawn = words.word[dropout_word_of(fragment_column(j))];
        if (threshold_.drops(drawn, fragment_row_index(j))) p[i + j] = 0.0f;
      }
    }
  }

 private:
  DropoutThreshold threshold_;
  PhiloxKey call_key_;
  DropoutHead head_{};
  DropoutQuery query_{};
  uint32_t key_word_ = 0;
};

// Accumulator rows are keys.
class KeyRowDropout {
 public:
  // first_key: of this warp in its sequence, a multiple of 16.
  __device__ __forceinline__ KeyRowDropout(const DropoutParams& params, int first_key)
      : scale(params.scale),
        threshold_(params.dropout),
        call_key_(params.dropout.call_key()),
        key_(first_key + fragment_row(int(threadIdx.x % kWarpSize))) {}

  __device__ __forceinline__ void set_head(int sequence, int head) {
    head_ = dropout_head(call_key_, sequence, head);
    key_part_ = dropout_key(head_, dropout_key_word(key_));
  }

  // The signs of the thread's 8 scores of 16 queries, from first_query on: set where one is
  // dropped. Lanes 4 apart have an even key and the next one. One makes the draws of the even query
  // that they share, the other those of the odd one, and they exchange halves.
  __device__ __forceinline__ void signs(uint32_t (&sign)[kDraws], int first_query) const {
    const bool odd = key_ % 2 != 0;
    const int query = first_query + fragment_lane_column(int(threadIdx.x % kWarpSize)) + odd;
    const PhiloxWords made =
        dropout_words(dropout_query(head_, dropout_query_word(query)), key_part_, call_key_);
    uint32_t of_query[2][2];  // words of the even query and the odd one, for keys 8 apart
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t own = odd ? made.word[2 + i] : made.word[i];
      const uint32_t given = odd ? made.word[i] : made.word[2 + i];
      const uint32_t taken = __shfl_xor_sync(0xffffffff, given, kQuadLanes);
      of_query[0][i] = odd ? taken : own;
      of_query[1][i] = odd ? own : taken;
    }
#pragma unroll
    for (int j = 0; j < kDraws; ++j) {
      const uint32_t drawn = of_query[j % 2][fragment_row_index(j)];
      sign[j] = threshold_.drops(drawn, dropout_half_of(fragment_column(j))) ? 0x80000000u : 0u;
    }
  }

  const float scale;

 private:
  DropoutThreshold threshold_;
  PhiloxKey call_key_;
  int key_;
  DropoutHead head_{};
  DropoutKey key_part_{};
};

// What is left to do to O: its scale. A NaN among a row's scores makes the row NaN, dropped or not.
struct KeptValues {
  float scale;

  template <int Count>
  __device__ __forceinline__ void restore(float (&output)[Count], const float (&sum)[2]) const {
    const float nan = __int_as_float(0x7fffffff);
    const float factor[2] = {sum[0] == sum[0] ? scale : nan, sum[1] == sum[1] ? scale : nan};
#pragma unroll
    for (int i = 0; i < Count; ++i) output[i] *= factor[fragment_row_index(i)];
  }
};

}  // namespace fa3::cuda
