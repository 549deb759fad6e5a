// SPDX-License-Identifier: Apache-2.0
//
// What a driver hands to simd/vector/dropout.h: core/dropout/dropout.h's parts of the generator
// that do not depend on the key. Plain data, as in block_job.h.
#pragma once

#include <cstdint>

namespace fa3::cpu {

// A query row of one head.
struct DropoutRowPart {
  uint32_t word0 = 0, word2 = 0, word3 = 0;  // DropoutQuery
  uint32_t to_keys = 0;                      // of the head
  int32_t first_word = 0;                    // of two words of draws, the row's: 0 or 1
};

// What the rows share.
struct DropoutJob {
  const DropoutRowPart* rows = nullptr;  // null: no dropout
  uint32_t of_keys = 0;                  // of the sequence
  uint32_t first_key_word = 0;           // of the sequence's first key
  uint32_t round_keys[4][2] = {};        // of rounds 4 to 7
  uint32_t limits[2] = {};               // of draws (Dropout::limit)
  uint32_t dropped_if_rare = 0;          // all ones where p <= 1 / 2
  float scale = 1.0f;                    // 1 / (1 - p)
};

}  // namespace fa3::cpu
