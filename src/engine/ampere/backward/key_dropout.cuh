// SPDX-License-Identifier: Apache-2.0
// Dropout of a warp's scores whose accumulator rows are keys, 16 of them by 16 queries at a time.
// What is drawn, and in which layout, is in core/dropout/dropout.h.
#pragma once

#include "engine/cuda/dropout/dropout.cuh"

namespace fa3::ampere {

using namespace cuda;

class KeyDropout {
 public:
  static constexpr int kScores = 8;  // a thread's, of 16 keys by 16 queries
  static constexpr int kSixteens = kDropoutKeys / kRowsPerWarp;

  // first_key: of the 16 in their sequence, a multiple of 16.
  __device__ __forceinline__ KeyDropout(const DropoutParams& params, int first_key)
      : params_(params),
        call_key_(uniform_call_key(params.dropout)),
        key_(first_key + fragment_row(int(thread_in_block() % kWarpSize))) {
#pragma unroll
    for (int sixteen = 0; sixteen < kSixteens; ++sixteen) {
      mine_[sixteen] = first_key % kDropoutKeys / kRowsPerWarp == sixteen ? ~0u : 0u;
    }
  }

  __device__ __forceinline__ void set_head(int sequence, int head) {
    head_ = params_.dropout.head(call_key_, sequence, head);
    key_part_ = dropout_key(head_, params_.dropout.key_word(key_));
  }

  // Set where the weight of a score is dropped; `first_query` is a multiple of 16. Lanes 4 apart
  // have an even key and the next one, whose draws are halves of the same words: each makes those
  // of one of its two neighbouring queries, and they exchange them as bits.
  __device__ __forceinline__ void signs(uint32_t (&sign)[kScores], int first_query) const {
    const int odd = key_ % 2;
    const int query = first_query + fragment_lane_column(int(thread_in_block() % kWarpSize)) + odd;
    const uint32_t made = dropped_bits(query);
    const uint32_t given = __shfl_xor_sync(0xffffffff, made, kQuadLanes);
    const uint32_t of_query[2] = {(odd ? given : made) >> 16 * odd,
                                  (odd ? made : given) >> 16 * odd};
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      // The number of its word: the first or the last 8 keys, and 8 queries.
      const int word = fragment_row_index(j) * 2 + j / 4;
      sign[j] = of_query[j % 2] << (31 - word) & 0x80000000u;
    }
  }

 private:
  // A bit for each of the four words that have the 16 keys' draws, in both halves.
  __device__ __forceinline__ uint32_t dropped_bits(int query) const {
    const PhiloxWords words = dropout_words(dropout_query(head_, params_.dropout.query_word(query)),
                                            key_part_, call_key_);
    const uint32_t limits = draw_limits(params_, words);
    const DropoutDraws draws = dropout_draws(words);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // By masks: the compiler would put words that are chosen into local memory.
      uint32_t word = 0;
#pragma unroll
      for (int sixteen = 0; sixteen < kSixteens; ++sixteen) {
        word |= draws.word[sixteen * 4 + i] & mine_[sixteen];
      }
      bits |= (halves_below(word, limits) ^ params_.kept_if_rare) & (0x10001u << i);
    }
    return bits;
  }

  const DropoutParams& params_;
  PhiloxKey call_key_;
  int key_;
  uint32_t mine_[kSixteens];  // all ones for those of a call's 64 keys
  DropoutHead head_{};
  DropoutKey key_part_{};
};

}  // namespace fa3::ampere
