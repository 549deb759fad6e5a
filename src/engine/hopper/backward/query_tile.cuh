// SPDX-License-Identifier: Apache-2.0
// Which query block a thread block of preprocess or postprocess has, and where its rows lie.
#pragma once

#include "engine/hopper/backward/backward_config.h"
#include "engine/hopper/backward/backward_params.h"

namespace fa3::hopper {

struct QueryTile {
  int64_t
      block;  // number in QueryScratch; negative: there are fewer query blocks than thread blocks
  int batch;
  int head;
  int first_row;  // in its sequence
  // Of the sequence: its first row in the tensors, its rows, those of them that are used; its keys.
  int begin;
  int owned;
  int used;
  int keys;

  // A row's place in the tensors.
  template <class Strides>
  __device__ __forceinline__ int64_t offset(const Strides& strides, int row) const {
    return strides.offset(batch, head, begin + row);
  }
};

template <BackwardConfig C, class Params>
__device__ __forceinline__ QueryTile query_tile(const Params& p, int64_t number) {
  const QueryScratch& scratch = p.scratch;
  if (C.general() && p.list.sequences) {
    const int tile = int(number), entry = tile / scratch.heads;
    if (entry >= *p.list.num_entries) return {.block = -1};
    const SequenceTiles& s = p.list.sequences[entry];
    const TileIndex index = s.order.tile(tile - s.first_entry * scratch.heads);
    const ScratchPlace place = p.q_is_packed
                                   ? ScratchPlace::of_packed(s.number, s.queries.begin, C.block_m)
                                   : ScratchPlace{s.queries.batch, 0};
    return {scratch.block(place, index.pack, index.m_block),
            s.queries.batch,
            index.pack,
            index.m_block * C.block_m,
            s.queries.begin,
            s.queries.count,
            s.queries.used,
            s.keys.count};
  }
  return {number,
          int(number / scratch.q_blocks / scratch.heads),
          int(number / scratch.q_blocks % scratch.heads),
          int(number % scratch.q_blocks) * C.block_m,
          0,
          p.seqlen_q,
          p.seqlen_q,
          0};
}

}  // namespace fa3::hopper
