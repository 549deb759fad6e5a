// SPDX-License-Identifier: Apache-2.0
// Which query block is the next that a key block goes through, head after head: every one that the
// mask rule leaves, or those alone that a block mask shows. Plain constexpr, tested on the host.
#pragma once

#include "engine/ampere/backward/backward_smem.h"
#include "engine/cuda/lists/map_entry.h"

namespace fa3::ampere {

template <BackwardConfig C, bool Masked = C.block_mask>
struct QueryBlock {
  int head;
  int m_block;

  static FA3_HD constexpr QueryBlock first(const BackwardParams& params, const KeyBlockWork& work) {
    return {work.keys.head * params.heads_per_kv_head, work.steps.first_block};
  }
  FA3_HD constexpr void advance(const BackwardParams&, const KeyBlockWork& work) {
    if (++m_block == work.steps.end_block) {
      m_block = work.steps.first_block;
      ++head;
    }
  }
  static FA3_HD constexpr int count(const BackwardParams&, const KeyBlockWork& work) {
    return work.num_steps;
  }
};

template <BackwardConfig C>
struct QueryBlock<C, true> {
  static_assert(kMaskBlock % C.block_m == 0 && kMaskBlock % C.block_n == 0);
  static constexpr int kSteps = kMaskBlock / C.block_m;  // of a block of the mask
  int head;
  int m_block;
  const uint32_t* bits;  // of the mask's block; null: all pairs are seen

  static FA3_HD constexpr QueryBlock first(const BackwardParams& params, const KeyBlockWork& work) {
    QueryBlock block{work.keys.head * params.heads_per_kv_head, work.steps.first_block, nullptr};
    if (work.steps.per_head() > 0) block.find(params, work);
    return block;
  }
  FA3_HD constexpr void advance(const BackwardParams& params, const KeyBlockWork& work) {
    ++m_block;
    find(params, work);
  }
  // All heads that share the keys count.
  static FA3_HD constexpr int count(const BackwardParams& params, const KeyBlockWork& work) {
    if (work.steps.per_head() == 0) return 0;
    int blocks = 0;
    const int end = end_head(params, work);
    for (QueryBlock at = first(params, work); at.head < end; at.advance(params, work)) ++blocks;
    return blocks;
  }

 private:
  static FA3_HD constexpr int end_head(const BackwardParams& params, const KeyBlockWork& work) {
    return (work.keys.head + 1) * params.heads_per_kv_head;
  }
  // The first from here on that is seen; behind the last, of a head that is another's.
  FA3_HD constexpr void find(const BackwardParams& params, const KeyBlockWork& work) {
    const int key_block = work.first_key / kMaskBlock, end = end_head(params, work);
    while (head < end) {
      if (m_block >= work.steps.end_block) {
        m_block = work.steps.first_block;
        ++head;
        continue;
      }
      const MapEntry entry =
          map_entry(params.block_mask, work.keys.sequence, head, m_block / kSteps, key_block);
      bits = entry.bits;
      if (entry.seen()) return;
      m_block = (m_block / kSteps + 1) * kSteps;
    }
  }
};

// How many key blocks add to a query block's dQ before this one, in deterministic calls.
template <BackwardConfig C>
FA3_HD constexpr int dq_order(const BackwardParams& params, const KeyBlockWork& work, int head,
                              int m_block) {
  const int n_block = work.first_key / C.block_n;
  const int before = dq_order_of(work.extents, n_block, C.block_n, m_block, C.block_m);
  if constexpr (!C.block_mask) return before;
  int seen = 0;
  for (int n = n_block + 1; n <= n_block + before; ++n) {
    seen += map_entry(params.block_mask, work.keys.sequence, head, m_block * C.block_m / kMaskBlock,
                      n * C.block_n / kMaskBlock)
                .seen();
  }
  return seen;
}

}  // namespace fa3::ampere
