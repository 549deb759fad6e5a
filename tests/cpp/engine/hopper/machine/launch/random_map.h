// SPDX-License-Identifier: Apache-2.0
//
// A block mask for a run on the model SM: a map for each head, some rows and columns of which see
// nothing. Bits have no meaning there.
#pragma once

#include <array>
#include <vector>

#include "core/mask/block_mask.h"
#include "launch/shape.h"

namespace fa3::hopper {

class RandomMap {
 public:
  BlockMask make(const CallShape& s, unsigned seed) {
    const auto blocks_of = [](int rows) { return int64_t{rows + kMaskBlock - 1} / kMaskBlock; };
    BlockMask mask{.on = true,
                   .query_blocks = blocks_of(s.seqlen_q),
                   .key_blocks = blocks_of(s.seqlen_k),
                   .batches = s.batches,
                   .heads = s.heads,
                   .bits = bits_.data(),
                   .num_bits = 1};
    mask.row_stride = mask.key_blocks;
    mask.head_stride = mask.query_blocks * mask.row_stride;
    mask.batch_stride = mask.heads * mask.head_stride;
    unsigned random = seed + 1;
    for (int64_t row = 0; row < mask.batches * mask.heads * mask.query_blocks; ++row) {
      for (int64_t key = 0; key < mask.key_blocks; ++key) {
        random = random * 1664525u + 1013904223u;
        const bool hidden = row % 5 == 3 || key % 4 == 2;
        entries_.push_back(hidden ? kHiddenBlock : int32_t(random >> 24) % 3 - 1);
      }
    }
    mask.blocks = entries_.data();
    return mask;
  }

 private:
  std::vector<int32_t> entries_;
  alignas(16) std::array<uint32_t, kMaskBlockWords> bits_{};
};

}  // namespace fa3::hopper
