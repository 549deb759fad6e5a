// SPDX-License-Identifier: Apache-2.0
//
// Dropout for engines that go row by row: what the weights of one query are multiplied by.
#pragma once

#include "core/problem.h"

namespace fa3::cpu {

// factors[key] = M / (1 - p) for the keys, all 1 without dropout.
template <class Float>
void dropout_factors(const Problem& problem, int64_t b, int64_t head, int64_t query, KeyRange keys,
                     Float* factors) {
  if (!problem.dropout.on()) {
    for (int64_t key = keys.begin; key < keys.end; ++key) factors[key] = 1;
    return;
  }
  const DropoutHead of_head = problem.dropout.head(problem.dropout.call_key(), b, head);
  DropoutRow row(problem.dropout, of_head, query);
  const auto scale = static_cast<Float>(problem.dropout.scale());
  for (int64_t key = keys.begin; key < keys.end; ++key) {
    factors[key] = row.keeps(key) ? scale : Float{0};
  }
}

}  // namespace fa3::cpu
