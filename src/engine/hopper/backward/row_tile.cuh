// SPDX-License-Identifier: Apache-2.0
// The block of rows of a CTA of preprocess or postprocess, and where it lies.
#pragma once

#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/config/backward_config.h"

namespace fa3::hopper {

struct RowTile {
  int64_t block;  // its number; negative: none, there are fewer blocks than CTAs
  int batch;
  int head;
  int first_row;  // in its sequence
  // The sequence: its first row in the tensors, its rows, its used rows, its keys.
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

// A RowTile with PackGQA: `head` is a head pack's number, and a sequence has as many times more
// rows.
struct PackedRowTile : RowTile {
  PackGqa pack;

  template <class Strides>
  __device__ __forceinline__ int64_t offset(const Strides& strides, int row) const {
    return strides.offset(batch, pack.head(head, row), begin + pack.query(row));
  }
};

template <BackwardConfig C>
__device__ __forceinline__ RowTile row_tile(const RowTiles& p, int64_t number) {
  const BlockNumbers& blocks = p.blocks;
  if (C.general() && p.varlen.sequences) {
    const int tile = int(number), entry = tile / blocks.heads;
    if (entry >= *p.varlen.num_entries) return {.block = -1};
    const SequenceTiles& s = p.varlen.sequences[entry];
    const TileIndex index = s.order.tile(tile - s.first_entry * blocks.heads);
    const ScratchPlace place =
        p.packed ? ScratchPlace::of_packed(s.number, s.queries.begin, C.shape.block_m)
                 : ScratchPlace{s.queries.batch, 0};
    return {blocks.block(place, index.pack, index.m_block),
            s.queries.batch,
            index.pack,
            index.m_block * C.shape.block_m,
            s.queries.begin,
            s.queries.count,
            s.queries.used,
            s.keys.count};
  }
  return {number,
          int(number / blocks.of_head / blocks.heads),
          int(number / blocks.of_head % blocks.heads),
          int(number % blocks.of_head) * C.shape.block_m,
          0,
          p.seqlen,
          p.seqlen,
          0};
}

}  // namespace fa3::hopper
