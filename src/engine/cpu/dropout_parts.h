// SPDX-License-Identifier: Apache-2.0
//
// Makes a DropoutJob and its rows from core/dropout.h.
#pragma once

#include <algorithm>

#include "core/dropout.h"
#include "engine/cpu/dropout_job.h"

namespace fa3::cpu {

// The call's key; any without dropout.
inline PhiloxKey call_key(const Dropout& dropout) {
  return dropout.on() ? dropout.call_key() : PhiloxKey{};
}

// Of a kernel's name in plans.
inline const char* dropout_suffix(const Dropout& dropout) {
  return dropout.on() ? ", dropout" : "";
}

inline DropoutRowPart dropout_row_part(const DropoutHead& head, int64_t query) {
  const DropoutQuery part = dropout_query(head, dropout_query_word(query));
  return {part.word0, part.word2, part.word3, head.to_keys, dropout_half_of(query) == 0 ? 16 : 0};
}

// `rows` to be filled in by the caller. Where nothing is kept, the scale alone makes the zeros.
inline DropoutJob dropout_job(const Dropout& dropout, PhiloxKey call_key, int64_t sequence,
                              const DropoutRowPart* rows) {
  DropoutJob job;
  job.rows = rows;
  job.of_keys = dropout_head(call_key, sequence, 0).of_keys;
  for (int round = 4; round <= kDropoutRounds; ++round) {
    const PhiloxKey key = philox_round_key(call_key, round);
    std::copy_n(key.word, 2, job.round_keys[round - 4]);
  }
  job.threshold = std::min(dropout.threshold, 65535u) << 16;
  job.scale = static_cast<float>(dropout.scale());
  return job;
}

}  // namespace fa3::cpu
