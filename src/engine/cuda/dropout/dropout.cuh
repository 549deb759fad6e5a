// SPDX-License-Identifier: Apache-2.0
// Dropout of a warp's scores, 16 queries by 64 keys at a time, which its threads hold as fragment.h
// says: 32 each, the draws of one call of the generator (core/dropout/dropout.h). Weights are
// dropped where they are packed in pairs already: a comparison and an AND for two of them.
#pragma once

#include "core/dropout/dropout.h"
#include "engine/cuda/feature_params.h"
#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/ptx/instructions.cuh"

namespace fa3::cuda {

// One a launch: in uniform registers, and so are the rounds' keys.
__device__ __forceinline__ PhiloxKey uniform_call_key(const Dropout& dropout) {
  const PhiloxKey key = dropout.call_key();
  return {{__reduce_or_sync(0xffffffff, key.word[0]), __reduce_or_sync(0xffffffff, key.word[1])}};
}

// The limit of a call's draws, in both halves.
__device__ __forceinline__ uint32_t draw_limits(const DropoutParams& params,
                                                const PhiloxWords& words) {
  return int32_t(words.word[0]) < 0 ? params.limits[1] : params.limits[0];
}

// Accumulator rows are queries.
class QueryRowDropout {
 public:
  __device__ __forceinline__ explicit QueryRowDropout(const DropoutParams& params)
      : params_(params), call_key_(uniform_call_key(params.dropout)) {}

  // first_row: of this warp in its sequence, a multiple of 16.
  __device__ __forceinline__ void set_tile(int sequence, int head, int first_row) {
    const int lane = int(threadIdx.x % kWarpSize);
    head_ = params_.dropout.head(call_key_, sequence, head);
    query_ = dropout_query(head_, params_.dropout.query_word(first_row + fragment_row(lane)));
  }

  // The generator's words for the keys from first_key on, a multiple of 64, 64 a call. Here, not
  // where they are used: they are a long chain, so this stands where the warp waits.
  template <int Calls>
  __device__ __forceinline__ void call(PhiloxWords (&words)[Calls], int first_key) const {
#pragma unroll
    for (int i = 0; i < Calls; ++i) {
      const uint32_t word = params_.dropout.origin.key_word +
                            uint32_t(first_key) / kDropoutKeys * 4 + i * 4 + threadIdx.x % 4;
      words[i] = dropout_words(query_, dropout_key(head_, word), call_key_);
      for (uint32_t& x : words[i].word) settle(x);
    }
  }

  // Packed P of the same keys.
  template <int Calls>
  __device__ __forceinline__ static void drop(uint32_t (&p)[Calls * 4][4],
                                              const PhiloxWords (&words)[Calls],
                                              const DropoutParams& params) {
#pragma unroll
    for (int i = 0; i < Calls; ++i) {
      const uint32_t limits = draw_limits(params, words[i]);
      const DropoutDraws draws = dropout_draws(words[i]);
#pragma unroll
      for (int j = 0; j < kDropoutWords; ++j) {
        uint32_t& pair = p[i * 4 + j / 4][j % 4];
        pair &= halves_below(draws.word[j], limits) ^ ~params.kept_if_rare;
      }
    }
  }

 private:
  const DropoutParams& params_;
  PhiloxKey call_key_;
  DropoutHead head_{};
  DropoutQuery query_{};
};

// Accumulator rows are keys, 64 of a warpgroup. Each of its warps makes the draws of 16 queries in
// the layout above, as bits; in shared memory the warps exchange them, which transposes them too.
class KeyRowDropout {
 public:
  // A draw's bit of a word's lower half is the number of its word.
  static constexpr int kBytes = 512;  // 32 bits of each thread

  // first_key: of the warpgroup in its sequence, a multiple of 64.
  __device__ __forceinline__ KeyRowDropout(const DropoutParams& params, int first_key)
      : params_(params),
        call_key_(uniform_call_key(params.dropout)),
        key_word_(params.dropout.key_word(first_key +
                                          fragment_lane_column(int(threadIdx.x % kWarpSize)))) {}

  __device__ __forceinline__ float keeps() const { return params_.keeps; }

  // Bits of this warp's 16 queries, from first_query on.
  __device__ __forceinline__ uint32_t dropped_bits(int sequence, int head, int first_query) const {
    const int query = first_query + fragment_row(int(threadIdx.x % kWarpSize));
    const DropoutHead of_head = params_.dropout.head(call_key_, sequence, head);
    const PhiloxWords words =
        dropout_words(dropout_query(of_head, params_.dropout.query_word(query)),
                      dropout_key(of_head, key_word_), call_key_);
    const uint32_t limits = draw_limits(params_, words);
    const DropoutDraws draws = dropout_draws(words);
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kDropoutWords; ++j) {
      bits |= halves_below(draws.word[j], limits) & (0x10001u << j);
    }
    return bits ^ params_.kept_if_rare;
  }

  // From transposed bits of 16 queries and this warp's keys: of register `reg` of the fragment, the
  // signs of both halves, set where a weight is dropped.
  __device__ __forceinline__ static uint32_t signs(uint32_t bits, int warp, int reg) {
    // Word 4 * warp + reg % 2 * 2 + reg / 2: of 8 keys, and of the first or the last 8 queries.
    return bits << (12 - 4 * warp) << (3 - reg % 2 * 2 - reg / 2) & 0x80008000u;
  }

 private:
  const DropoutParams& params_;
  PhiloxKey call_key_;
  uint32_t key_word_;
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
