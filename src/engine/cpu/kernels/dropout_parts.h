// SPDX-License-Identifier: Apache-2.0
//
// Makes a DropoutJob and its rows from core/dropout/dropout.h.
#pragma once

#include <algorithm>

#include "core/dropout/dropout.h"
#include "engine/cpu/kernels/dropout_job.h"

namespace fa3::cpu {

// The call's key; any without dropout.
inline PhiloxKey call_key(const Dropout& dropout) {
  return dropout.on() ? dropout.call_key() : PhiloxKey{};
}

// What is added to a kernel's name in plans.
inline const char* dropout_suffix(const Dropout& dropout) {
  return dropout.on() ? ", dropout" : "";
}

inline DropoutRowPart dropout_row_part(const Dropout& dropout, const DropoutHead& head,
                                       int64_t query) {
  const DropoutQuery part = dropout_query(head, dropout.query_word(query));
  return {part.word0, part.word2, part.word3, head.to_keys, dropout_word_of(query, 0)};
}

// `rows` to be filled in by the caller.
inline DropoutJob dropout_job(const Dropout& dropout, PhiloxKey call_key, int64_t sequence,
                              const DropoutRowPart* rows) {
  DropoutJob job;
  job.rows = rows;
  job.of_keys = dropout.head(call_key, sequence, 0).of_keys;
  job.first_key_word = dropout.origin.key_word;
  for (int round = 4; round <= kDropoutRounds; ++round) {
    const PhiloxKey key = philox_round_key(call_key, round);
    std::copy_n(key.word, 2, job.round_keys[round - 4]);
  }
  job.limits[0] = dropout.limit(false);
  job.limits[1] = dropout.limit(true);
  job.dropped_if_rare = dropout.drops_most() ? 0 : ~0u;
  job.scale = static_cast<float>(dropout.scale());
  return job;
}

}  // namespace fa3::cpu
