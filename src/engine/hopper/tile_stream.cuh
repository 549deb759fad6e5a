// SPDX-License-Identifier: Apache-2.0
// The tiles of one thread block, one after the other, each as the record that the consumers get. Tiles
// of unequal length are drawn from a counter, when a thread block is free; others are dealt in turn,
// which needs no counter to be cleared. Next: load_tma.cuh.
#pragma once

#include "engine/hopper/forward_params.h"
#include "engine/hopper/piece/work_item.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class TileStream {
  using Edge = decltype(ItemOf<C>::Blocks::edge);

 public:
  __device__ __forceinline__ explicit TileStream(const ForwardParams& params)
      : params_(params), tile_(int(blockIdx.x)) {}

  __device__ __forceinline__ bool done() const { return tile_ >= params_.order.num_tiles(); }

  // Settles which tile is next. The later it is asked, the better the end of the work evens out; the
  // answer takes about a microsecond.
  __device__ __forceinline__ void draw_next() {
    const int stride = int(gridDim.x);
    next_tile_ =
        params_.ticket_counter ? atomicAdd(params_.ticket_counter, 1) + stride : tile_ + stride;
  }
  __device__ __forceinline__ void advance() { tile_ = next_tile_; }

  // Both ends of a row's keys grow with the row: the first row's begin and the last one's end are the
  // tile's.
  __device__ __forceinline__ ItemOf<C> item() const {
    const TileIndex index = params_.order.tile(tile_);
    const HeadPack pack = params_.output.pack;
    const int seqlen_q = params_.seqlen_q, seqlen_k = params_.seqlen_k;
    const int first_row = index.m_block * C.block_m;
    const int first_key = params_.mask.keys_of(pack.query(first_row), seqlen_q, seqlen_k).begin;
    ItemOf<C> item{.first_row = first_row,
                   .queries = {index.batch, index.pack, 0, seqlen_q},
                   .keys = {.begin = 0, .count = seqlen_k},
                   .first_key = first_key};
    for (int w = 0; w < C.consumers(); ++w) {
      const int q_begin = pack.query(first_row + w * kRowsPerWarpgroup);
      const int past_end = pack.query(first_row + (w + 1) * kRowsPerWarpgroup);
      const int q_end = past_end < seqlen_q ? past_end : seqlen_q;
      if (q_begin >= seqlen_q) break;
      const auto range = block_range(params_.mask, q_begin, q_end, seqlen_q, seqlen_k);
      const auto edge = Edge::of(params_.mask, q_begin, q_end, seqlen_q, seqlen_k);
      item.mine[w] = row_blocks(range.from(first_key), edge.from(first_key), C.block_n);
      item.num_blocks = item.mine[w].count;
    }
    return item;
  }

 private:
  const ForwardParams& params_;
  int tile_;
  int next_tile_ = 0;
};

}  // namespace fa3::hopper
