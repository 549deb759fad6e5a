// SPDX-License-Identifier: Apache-2.0
//
// The key blocks of a backward's CTAs, and the query blocks that each of them steps through: by the
// mask rule, not by the kernel's query_steps(). Next: backward_products.h, backward_departures.h.
#pragma once

#include <algorithm>
#include <vector>

#include "backward/launched_backward.h"

namespace fa3::hopper {

// A key block, of a pair both and which of them is this CTA's; its split of the query heads, and
// its sequence.
template <BackwardConfig C>
struct BackwardWork {
  bool exists;
  int n_block;
  int kv_head;
  QueryRows keys;
  KeyRows queries;
  ScratchPlace scratch;
  int step_split = 0;
  int sequence = 0;
  int rank = 0;

  int first_key() const { return n_block * C.keys_of_cluster() + rank * C.shape.block_n; }
  BackwardWork of_other() const {
    BackwardWork other = *this;
    other.rank ^= 1;
    return other;
  }
  // The first part of dQ that the CTA sums.
  int first_part() const { return rank * C.dq_parts(); }
  // Where the row of a tile of keys lies in its tensor.
  int key_row(int row) const { return keys.begin + first_key() + row; }
};

template <BackwardConfig C>
class BackwardWorks {
 public:
  using Work = BackwardWork<C>;

  explicit BackwardWorks(const LaunchedBackward<C>& launch) : launch_(launch) {}

  // What a CTA does, one after the other. Others have drawn, too.
  std::vector<Work> works_of(int cta, const std::vector<int>& drawn) const {
    const Work first = work_of(cta);
    if (!first.exists) return {};
    std::vector<Work> works{first};
    for (const int number : drawn) {
      const int tile = launch_.tiles + number;
      if (tile < launch_.params.order.num_tiles()) works.push_back(work_of(tile));
    }
    return works;
  }

  Work work_of(int tile) const {
    Work at = work_of_cluster(tile / C.ctas());
    at.rank = tile % C.ctas();
    return at;
  }

  // By the mask rule, not by query_steps(): head after head, the blocks with a query that sees a
  // key.
  std::vector<QueryBlock> blocks_of(const Work& at) const {
    const int group = launch_.shape.heads / launch_.shape.kv_heads;
    const int first_head = at.kv_head * group, first_key = at.n_block * C.keys_of_cluster();
    std::vector<QueryBlock> blocks;
    for (int head = first_head; head < first_head + group; ++head) {
      for (int m = 0; m * C.shape.block_m < at.queries.count; ++m) {
        bool sees = sees_keys(at, m, first_key, C.keys_of_cluster());
        if (C.block_mask()) {
          const int32_t* const row =
              launch_.mask.row_of(at.sequence, head, m * C.shape.block_m / kMaskBlock);
          sees =
              row[at.n_block] != kHiddenBlock && block_holds(at, m * C.shape.block_m / kMaskBlock);
        }
        if (sees) blocks.push_back({head, m});
      }
    }
    return share_of(blocks, at.step_split);
  }

  // The blocks that a warpgroup of dK and dV multiplies. Where some of them see its keys, general
  // kernels leave out the first and the last one if it does not.
  std::vector<QueryBlock> multiplied_blocks(const Work& at, std::vector<QueryBlock> blocks,
                                            int warpgroup) const {
    if (!C.leaves_out_steps()) return blocks;
    const int first_key = at.n_block * C.shape.block_n + warpgroup * kRowsPerWarpgroup;
    const auto sees = [&](QueryBlock b) {
      return sees_keys(at, b.m_block, first_key, kRowsPerWarpgroup);
    };
    if (std::none_of(blocks.begin(), blocks.end(), sees)) return blocks;
    if (!sees(blocks.front())) blocks.erase(blocks.begin());
    if (!sees(blocks.back())) blocks.pop_back();
    return blocks;
  }

  int* counter_of(const Work& at, const QueryBlock& b) const {
    return launch_.params.scratch.dq_semaphore +
           launch_.params.scratch.numbers.block(at.scratch, b.head, b.m_block);
  }
  const float* dq_block_of(const Work& at, const QueryBlock& b) const {
    return launch_.params.scratch.dq_accum +
           launch_.params.scratch.numbers.block(at.scratch, b.head, b.m_block) *
               C.dq_accum().block_floats();
  }

  // How many CTAs add to a query block before: those of key blocks in front, or behind where the
  // last go first.
  int dq_order(const Work& at, const QueryBlock& b) const {
    const bool last_first = !C.block_mask() && (C.general() || launch_.params.extents.causal);
    int before = 0;
    for (int n = 0; n * C.keys_of_cluster() < at.keys.used; ++n) {
      if (last_first ? n <= at.n_block : n >= at.n_block) continue;
      Work other = at;
      other.n_block = n;
      for (const QueryBlock& theirs : blocks_of(other)) {
        if (theirs.head == b.head && theirs.m_block == b.m_block) before += C.ctas();
      }
    }
    return before;
  }

 private:
  Work work_of_cluster(int tile) const {
    const CallShape& s = launch_.shape;
    if (!s.varlen()) {
      KeyBlockIndex at = launch_.params.order.at(tile);
      if (C.block_mask() && !launch_.has_order()) {  // the longest list first
        const int head = at.kv_head * (s.heads / s.kv_heads);
        at.n_block = launch_.params.lists.ranked(at.batch, head,
                                                 launch_.params.lists.num_lists - 1 - at.n_block);
      }
      return {true,
              at.n_block,
              at.kv_head,
              {at.batch, 0, 0, s.seqlen_k, s.seqlen_k},
              {at.batch, 0, s.seqlen_q},
              {at.batch, 0},
              at.step_split,
              at.batch};
    }
    const int entry = tile / s.kv_heads;
    if (entry >= *launch_.params.varlen.num_entries) return {};
    const SequenceTiles& sequence = launch_.params.varlen.sequences[entry];
    const TileIndex index = sequence.order.tile(tile - sequence.first_entry * s.kv_heads);
    return {true,
            block_of(sequence, index),
            index.pack,
            sequence.queries,
            sequence.keys,
            s.packed()
                ? ScratchPlace::of_packed(sequence.number, sequence.keys.begin, C.shape.block_m)
                : ScratchPlace{sequence.keys.batch, 0},
            0,
            sequence.number};
  }
  // Under a block mask the longest list of the sequence comes first, unless additions have an
  // order.
  int block_of(const SequenceTiles& sequence, const TileIndex& index) const {
    if (C.block_mask() && !launch_.has_order()) {
      const int head = index.pack * (launch_.shape.heads / launch_.shape.kv_heads);
      const int list = sequence.first_entry + index.m_block;
      return launch_.params.lists.lengths[launch_.params.lists.number(0, head, list)].nth;
    }
    return launch_.params.order.last_keys_first && !C.block_mask()
               ? index.m_block
               : sequence.order.num_m_blocks - 1 - index.m_block;
  }

  // A split's steps: as many as any other's, but for the last ones.
  std::vector<QueryBlock> share_of(const std::vector<QueryBlock>& blocks, int split) const {
    const size_t splits = launch_.params.order.step_splits;
    const size_t each = (blocks.size() + splits - 1) / splits;
    const auto end_of = [&](size_t number) { return std::min(number * each, blocks.size()); };
    const auto first = blocks.begin();
    return {first + ptrdiff_t(end_of(size_t(split))), first + ptrdiff_t(end_of(size_t(split) + 1))};
  }

  bool sees_keys(const Work& at, int m_block, int first_key, int num_keys) const {
    const int end = std::min((m_block + 1) * C.shape.block_m, at.queries.count);
    for (int query = m_block * C.shape.block_m; query < end; ++query) {
      const KeyRangeOf<int> keys =
          launch_.shape.mask.keys_of(query, at.queries.count, at.keys.used);
      if (std::max(keys.begin, first_key) < std::min(keys.end, first_key + num_keys)) return true;
    }
    return false;
  }

  // Whether a query of a block of the mask sees a key by the rule beside it.
  bool block_holds(const Work& at, int query_block) const {
    constexpr int kSteps = kMaskBlock / C.shape.block_m;
    for (int m = query_block * kSteps; m < (query_block + 1) * kSteps; ++m) {
      if (sees_keys(at, m, at.n_block * C.shape.block_n, C.shape.block_n)) return true;
    }
    return false;
  }

  const LaunchedBackward<C>& launch_;
};

}  // namespace fa3::hopper
