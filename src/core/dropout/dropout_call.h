// SPDX-License-Identifier: Apache-2.0
//
// What a call asks of dropout. dropout.h makes the draws.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3 {

struct PhiloxKey;
struct DropoutHead;

// Where a call's first sequence, query head, query and key lie in what one mask is drawn for, so
// that a part of it drops what the whole does. Queries and keys as words of the counter
// (dropout.h): they begin at multiples of kDropoutQueries and kDropoutKeys.
struct DropoutOrigin {
  uint32_t sequence = 0, head = 0, query_word = 0, key_word = 0;
};

struct Dropout {
  uint32_t threshold = 0;  // of 65536 weights are dropped; 0: no dropout, 65536: nothing is kept
  uint64_t seed = 0, offset = 0;
  const uint64_t* seed_at = nullptr;  // where they are instead; in the tensors' memory
  const uint64_t* offset_at = nullptr;
  DropoutOrigin origin;

  FA3_HD constexpr bool on() const { return threshold != 0; }
  // 1 / (1 - p) for the p of the draws; 0 where nothing is kept.
  FA3_HD constexpr double scale() const {
    return threshold == 65536 ? 0.0 : 65536.0 / (65536.0 - threshold);
  }
  FA3_HD constexpr bool drops_most() const { return threshold > 32768; }
  // A draw below is rare: one of 2^15, or one more where `up`, as the highest bit of a call's first
  // word says, which no draw depends on. So the rarer of dropped and kept has its 2^16th.
  FA3_HD constexpr uint32_t limit(bool up) const {
    return ((drops_most() ? 65536 - threshold : threshold) + up) / 2;
  }

  // In dropout.h. head() takes what call_key() returns.
  FA3_HD constexpr PhiloxKey call_key() const;
  FA3_HD constexpr uint32_t query_word(int64_t query) const;
  FA3_HD constexpr uint32_t key_word(int64_t key) const;
  FA3_HD constexpr DropoutHead head(PhiloxKey call_key, int64_t sequence, int64_t number) const;
};

}  // namespace fa3
