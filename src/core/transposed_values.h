// SPDX-License-Identifier: Apache-2.0
// Values that lie transposed: FA3_TRANSPOSED_KEYS of fa3.h. FP8 tensor cores sum along what lies
// side by side in memory, and take keys in the order in which a lane holds their weights. Next:
// problem.h.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3 {

inline constexpr int kTransposedKeys = 16;

// Where a key lies among those of its channel: in each 16, pairs of the first 8 and of the last 8
// take turns.
constexpr FA3_HD int64_t transposed_place(int64_t key) {
  const int64_t pair = key % 8 / 2, half = key % kTransposedKeys / 8;
  return key / kTransposedKeys * kTransposedKeys + 4 * pair + 2 * half + key % 2;
}

// Numbers of a channel in memory. Those behind the last key are zeros.
constexpr FA3_HD int64_t transposed_places(int64_t keys) {
  return (keys + kTransposedKeys - 1) / kTransposedKeys * kTransposedKeys;
}

}  // namespace fa3
