// SPDX-License-Identifier: Apache-2.0
//
// A block mask of random blocks, a third each hidden, full and with bits of its own, for one map or
// one of each sequence and head. The first row hides all. Bits are set for pairs past the last
// query and key too, and one entry names bits that do not exist.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/mask/block_mask.h"

namespace fa3::ampere {

class RandomMap {
 public:
  RandomMap() = default;
  RandomMap(int sequences, int heads, int seqlen_q, int seqlen_k)
      : query_blocks_((seqlen_q + kMaskBlock - 1) / kMaskBlock),
        key_blocks_((seqlen_k + kMaskBlock - 1) / kMaskBlock),
        sequences_(sequences),
        heads_(heads) {
    std::mt19937 random(13);
    int32_t named = 0;
    for (int row = 0; row < sequences * heads * query_blocks_; ++row) {
      for (int key = 0; key < key_blocks_; ++key) {
        const unsigned kind = random() % 3;
        const bool hidden = row == 0 && query_blocks_ > 1;
        blocks_.push_back(hidden || kind == 0 ? 0 : kind == 1 ? -1 : ++named);
      }
    }
    for (int i = 0; i < named * kMaskBlockWords; ++i) bits_.push_back(uint32_t(random()));
    blocks_.back() = blocks_.size() > 2 ? named + 1 : -1;
    named_ = named;
  }

  bool on() const { return !blocks_.empty(); }
  BlockMask mask() const {
    if (!on()) return {};
    const int64_t row = key_blocks_, head = row * query_blocks_, sequence = head * heads_;
    return {.on = true,
            .blocks = blocks_.data(),
            .batch_stride = sequences_ > 1 ? sequence : 0,
            .head_stride = heads_ > 1 ? head : 0,
            .row_stride = row,
            .query_blocks = query_blocks_,
            .key_blocks = key_blocks_,
            .batches = sequences_,
            .heads = heads_,
            .bits = bits_.data(),
            .num_bits = named_};
  }
  bool shows(int sequence, int head, int query, int key) const {
    if (!on()) return true;
    const BlockMask all = mask();
    const int32_t* const row = all.row_of(sequence, head, query / kMaskBlock);
    return row[key / kMaskBlock] <= named_ && all.visible(sequence, head, query, key);
  }

 private:
  int query_blocks_ = 0, key_blocks_ = 0, sequences_ = 1, heads_ = 1;
  int32_t named_ = 0;
  std::vector<int32_t> blocks_;
  std::vector<uint32_t> bits_;
};

}  // namespace fa3::ampere
