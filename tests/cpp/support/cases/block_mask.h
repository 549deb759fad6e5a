// SPDX-License-Identifier: Apache-2.0
//
// A case's block mask: a random map, and random bits, also for pairs past the last query and key.
#pragma once

#include <cstdint>
#include <vector>

namespace fa3::test {

// What a case says of it.
struct MaskForm {
  bool on = false;
  bool by_sequence = false, by_head = false;  // else one map for all
  double hidden = 0.4, partial = 0.3;         // parts of the blocks; the rest is full
};

struct MaskData {
  int64_t sequences = 1, heads = 1, query_blocks = 0, key_blocks = 0;
  std::vector<int32_t> blocks;  // (sequences, heads, query_blocks, key_blocks)
  std::vector<int32_t> bits;    // (n, 128, 4)

  bool shows(int64_t b, int64_t head, int64_t query, int64_t key) const;
};

struct Case;
MaskData make_mask(const Case& c);

}  // namespace fa3::test
