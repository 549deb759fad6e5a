// SPDX-License-Identifier: Apache-2.0
// Which blocks of a map's row the mask rule beside it cuts: those have bits of their own in the
// lists, in which the rule's are too, so that kernels know of lists alone. Plain constexpr, tested
// on the host. Next: block_lists.h.
#pragma once

#include "core/mask/block_mask.h"
#include "core/mask/key_blocks.h"

namespace fa3::cuda {

// A side of the rule moves by a key a query, over no more than two blocks of keys in one of
// queries.
inline constexpr int kCutsOfSide = 2;

struct RowCuts {
  KeyBlocks blocks;
  int left_cuts;  // places for those on the left

  // Chunks may cut all of a row's blocks: callers refuse them.
  static FA3_HD constexpr int most(const MaskRuleOf<int>& rule, int seqlen_k) {
    const bool left = rule.left != rule.kUnbounded, right = rule.right != rule.kUnbounded;
    const int of_right = right ? kCutsOfSide : seqlen_k % kMaskBlock != 0 ? 1 : 0;
    return (left ? kCutsOfSide : 0) + of_right;
  }

  static FA3_HD constexpr RowCuts of(const MaskRuleOf<int>& rule, int query_block, int seqlen_q,
                                     int seqlen_k) {
    const int begin = query_block * kMaskBlock;
    const int end = begin + kMaskBlock < seqlen_q ? begin + kMaskBlock : seqlen_q;
    return {key_blocks(block_range(rule, begin, end, seqlen_q, seqlen_k), kMaskBlock),
            rule.left != rule.kUnbounded ? kCutsOfSide : 0};
  }

  FA3_HD constexpr bool holds(int block) const {
    return block >= blocks.first && block < blocks.end;
  }
  FA3_HD constexpr bool cuts(int block) const {
    return holds(block) && (block < blocks.masked_below || block >= blocks.masked_from);
  }
  // Where a cut block's bits lie among the row's.
  FA3_HD constexpr int place(int block) const {
    return block < blocks.masked_below ? block - blocks.first : left_cuts + block - right_from();
  }
  // The cut blocks, by number from 0 up; -1: there are no more.
  FA3_HD constexpr int cut(int number) const {
    int block = blocks.first + number;
    if (block >= blocks.masked_below) {
      const int of_left =
          blocks.masked_below > blocks.first ? blocks.masked_below - blocks.first : 0;
      block = right_from() + number - of_left;
    }
    return block < blocks.end ? block : -1;
  }

 private:
  FA3_HD constexpr int right_from() const {
    const int from = blocks.masked_from > blocks.first ? blocks.masked_from : blocks.first;
    return from > blocks.masked_below ? from : blocks.masked_below;
  }
};

}  // namespace fa3::cuda
