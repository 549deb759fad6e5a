// SPDX-License-Identifier: Apache-2.0
//
// Philox-4x32, a counter-based generator: the random words of a counter under a key, in any order
// and on any number of threads. Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3" (SC'11); its 7 rounds are the fewest that pass BigCrush there, 10 its default.
// Next: dropout.h.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3 {

// A counter, and what becomes of it: four random words.
struct PhiloxWords {
  uint32_t word[4] = {};
};

struct PhiloxKey {
  uint32_t word[2] = {};
};

inline constexpr uint32_t kPhiloxFactor0 = 0xD2511F53u, kPhiloxFactor1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxStep0 = 0x9E3779B9u, kPhiloxStep1 = 0xBB67AE85u;

// The key of a round, counted from 1.
FA3_HD constexpr PhiloxKey philox_round_key(PhiloxKey key, int round) {
  const auto steps = static_cast<uint32_t>(round - 1);
  return {{key.word[0] + steps * kPhiloxStep0, key.word[1] + steps * kPhiloxStep1}};
}

FA3_HD constexpr PhiloxWords philox_round(PhiloxWords in, PhiloxKey round_key) {
  const uint64_t a = uint64_t{kPhiloxFactor0} * in.word[0];
  const uint64_t b = uint64_t{kPhiloxFactor1} * in.word[2];
  return {
      {static_cast<uint32_t>(b >> 32) ^ in.word[1] ^ round_key.word[0], static_cast<uint32_t>(b),
       static_cast<uint32_t>(a >> 32) ^ in.word[3] ^ round_key.word[1], static_cast<uint32_t>(a)}};
}

// Rounds first to last of the words.
FA3_HD constexpr PhiloxWords philox_rounds(PhiloxWords words, PhiloxKey key, int first, int last) {
  for (int round = first; round <= last; ++round) {
    words = philox_round(words, philox_round_key(key, round));
  }
  return words;
}

template <int kRounds>
FA3_HD constexpr PhiloxWords philox(PhiloxWords counter, PhiloxKey key) {
  return philox_rounds(counter, key, 1, kRounds);
}

}  // namespace fa3
