// SPDX-License-Identifier: Apache-2.0
//
// Dropout: which weights P of a call are kept, the same for every engine, tile shape and split.
// Source: Srivastava et al. (JMLR 15, 2014); FlashAttention (arXiv 2205.14135), Algorithm 2 and
// Appendix B.3.
//
//   O_i = sum_j M_ij P_ij V_j / (1 - p)         dP_ij = M_ij (dO_i . V_j) / (1 - p)
//
// M_ij belongs to (sequence, query head, query, key), with rows counted within the sequence:
// philox.h makes a draw of 15 bits of them and of the call's key. The rarer of the two, dropped or
// kept, is where the draw is below a limit.
//
// One call of the generator has the draws of two queries, eight rows apart, and of 16 keys: two
// neighbours in each 8 of 64. That is what a thread holds of 16 queries x 64 keys in the tensor
// cores' accumulators: rows g and g + 8, columns 2t and 2t + 1 of each 8. Packed in pairs, a word
// of draws belongs to a register of weights.
#pragma once

#include <cstdint>

#include "core/dropout/dropout_call.h"
#include "core/dropout/dropout_sums.h"
#include "core/dropout/philox.h"
#include "core/macros.h"

namespace fa3 {

inline constexpr int kDropoutQueries = 16, kDropoutKeys = 64;  // of the calls of 32 lanes

// What Philox counts: the second and fourth word of its counter.
FA3_HD constexpr uint32_t dropout_key_word(int64_t key) {
  return static_cast<uint32_t>(key / kDropoutKeys * 4 + key % 8 / 2);
}
FA3_HD constexpr uint32_t dropout_query_word(int64_t query) {
  return static_cast<uint32_t>(query / kDropoutQueries * 8 + query % 8);
}

// Which word has the draw of a query and a key, and which half of it: 0 the lower one.
FA3_HD constexpr int dropout_word_of(int64_t query, int64_t key) {
  return static_cast<int>(key % kDropoutKeys / 8 * 2 + query / 8 % 2);
}
FA3_HD constexpr int dropout_half_of(int64_t key) {
  return static_cast<int>(key % 2);
}

// The counter is (head, key word, sequence, query word). So in rounds 1 to 3 no product depends on
// both the query and the key: they are made once for a query, and once for a key of a head.
struct DropoutHead {
  PhiloxKey key;                 // of the call
  uint32_t of_keys, of_queries;  // round 1, without the key or query word
  uint32_t to_queries, to_keys;  // into round 2, with its key
};

struct DropoutQuery {
  uint32_t word0, word2, word3;  // of round 3
};

struct DropoutKey {
  uint32_t word0, word1, word2;  // of round 3
};

FA3_HD constexpr DropoutHead dropout_head(PhiloxKey key, int64_t sequence, int64_t head,
                                          const DropoutOrigin& origin = {}) {
  const PhiloxWords one = philox_round({{static_cast<uint32_t>(head) + origin.head, 0,
                                         static_cast<uint32_t>(sequence) + origin.sequence, 0}},
                                       key);
  const PhiloxKey round2 = philox_round_key(key, 2);
  return {key, one.word[0], one.word[2], one.word[1] ^ round2.word[0],
          one.word[3] ^ round2.word[1]};
}

// query_word, key_word: the origin's and the call's own.
FA3_HD constexpr DropoutQuery dropout_query(const DropoutHead& head, uint32_t query_word) {
  const uint64_t two = uint64_t{kPhiloxFactor1} * (head.of_queries ^ query_word);
  const uint64_t three =
      uint64_t{kPhiloxFactor0} * (static_cast<uint32_t>(two >> 32) ^ head.to_queries);
  const PhiloxKey round3 = philox_round_key(head.key, 3);
  return {static_cast<uint32_t>(two) ^ round3.word[0],
          static_cast<uint32_t>(three >> 32) ^ round3.word[1], static_cast<uint32_t>(three)};
}

FA3_HD constexpr DropoutKey dropout_key(const DropoutHead& head, uint32_t key_word) {
  const uint64_t two = uint64_t{kPhiloxFactor0} * (head.of_keys ^ key_word);
  const uint64_t three =
      uint64_t{kPhiloxFactor1} * (static_cast<uint32_t>(two >> 32) ^ head.to_keys);
  return {static_cast<uint32_t>(three >> 32), static_cast<uint32_t>(three),
          static_cast<uint32_t>(two)};
}

// philox<7> of the counter.
inline constexpr int kDropoutRounds = 7;
FA3_HD constexpr PhiloxWords dropout_words(DropoutQuery query, DropoutKey key, PhiloxKey call_key) {
  return philox_rounds({{query.word0 ^ key.word0, key.word1, query.word2 ^ key.word2, query.word3}},
                       call_key, 4, kDropoutRounds);
}

// The 32 draws of a call: the lower 15 bits of each half of a word.
struct DropoutDraws {
  uint32_t word[kDropoutWords] = {};

  FA3_HD constexpr uint32_t draw(int64_t query, int64_t key) const {
    return word[dropout_word_of(query, key)] >> (16 * dropout_half_of(key)) & 0x7fff;
  }
};

// Words from number `Word` on.
template <int Word = kPhiloxWords>
FA3_HD constexpr void add_dropout_sums(DropoutDraws& draws) {
  if constexpr (Word < kDropoutWords) {
    constexpr DropoutSum kSum = kDropoutSums[Word - kPhiloxWords];
    draws.word[Word] = kSum.factor * draws.word[kSum.times] + draws.word[kSum.plus];
    add_dropout_sums<Word + 1>(draws);
  }
}

FA3_HD constexpr DropoutDraws dropout_draws(const PhiloxWords& words) {
  DropoutDraws draws;
  for (int i = 0; i < kPhiloxWords; ++i) draws.word[i] = words.word[i];
  add_dropout_sums(draws);
  return draws;
}

// The key of a call's draws.
FA3_HD constexpr PhiloxKey dropout_call_key(uint64_t seed, uint64_t offset) {
  const PhiloxWords words =
      philox<10>({{static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32), 0, 0}},
                 {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}});
  return {{words.word[0], words.word[1]}};
}

// Which part of 2^16 of the weights is dropped, for 0 <= p <= 1: to the nearest, but some where
// p > 0, and not all where p < 1.
constexpr uint32_t dropout_threshold(float p) {
  if (p <= 0.0f) return 0;
  if (p >= 1.0f) return 65536;
  const uint32_t nearest = (static_cast<uint32_t>(p * 131072.0f) + 1) / 2;
  return nearest < 1 ? 1 : nearest > 65535 ? 65535 : nearest;
}

// Reads the scalars where there are pointers.
FA3_HD constexpr PhiloxKey Dropout::call_key() const {
  return dropout_call_key(seed_at != nullptr ? *seed_at : seed,
                          offset_at != nullptr ? *offset_at : offset);
}
FA3_HD constexpr uint32_t Dropout::query_word(int64_t query) const {
  return origin.query_word + dropout_query_word(query);
}
FA3_HD constexpr uint32_t Dropout::key_word(int64_t key) const {
  return origin.key_word + dropout_key_word(key);
}
FA3_HD constexpr DropoutHead Dropout::head(PhiloxKey call_key, int64_t sequence,
                                           int64_t number) const {
  return dropout_head(call_key, sequence, number, origin);
}

// The keep mask of one query, key by key, fastest in their order.
class DropoutRow {
 public:
  FA3_HD constexpr DropoutRow(const Dropout& dropout, const DropoutHead& head, int64_t query)
      : dropout_(dropout),
        head_(head),
        query_(query),
        part_(dropout_query(head, dropout.query_word(query))) {}

  FA3_HD constexpr bool keeps(int64_t key) {
    if (key / kDropoutKeys != block_) make_block(key / kDropoutKeys);
    return kept_ >> (key % kDropoutKeys) & 1;
  }

 private:
  FA3_HD constexpr void make_block(int64_t block) {
    block_ = block;
    kept_ = 0;
    for (int64_t pair = 0; pair < 8; pair += 2) {
      const DropoutKey key = dropout_key(head_, dropout_.key_word(block * kDropoutKeys + pair));
      const PhiloxWords words = dropout_words(part_, key, head_.key);
      const DropoutDraws draws = dropout_draws(words);
      const uint32_t limit = dropout_.limit(words.word[0] >> 31 != 0);
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t at = pair + i / 2 * 8 + i % 2;
        const bool rare = draws.draw(query_, at) < limit;
        kept_ |= uint64_t{rare == dropout_.drops_most()} << at;
      }
    }
  }

  const Dropout& dropout_;
  const DropoutHead& head_;
  int64_t query_;
  DropoutQuery part_;
  int64_t block_ = -1;  // of 64 keys, whose bits are there
  uint64_t kept_ = 0;
};

}  // namespace fa3
