// SPDX-License-Identifier: Apache-2.0
// What a launch asks of its tiles, and which key blocks of a tile a warpgroup visits. Next:
// dense_tiles.cuh.
#pragma once

#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/policies/scores.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

template <Kernel C>
__device__ __forceinline__ bool has_pages(const ForwardParams& params) {
  return (C.general() || C.is_stream_k()) && params.paged.page_size > 0;
}

template <Kernel C>
class WorkTileBlocks {
  using Edge = decltype(WorkTileOf<C>::Blocks::edge);

 public:
  __device__ __forceinline__ explicit WorkTileBlocks(const ForwardParams& params)
      : params_(params) {}

  __device__ __forceinline__ bool has_varlen_metadata() const {
    return C.general() && params_.sequences;
  }
  __device__ __forceinline__ bool paged() const { return has_pages<C>(params_); }
  __device__ __forceinline__ bool is_split() const {
    return C.is_stream_k() || (C.can_split() && params_.schedule.is_active());
  }

  // Dense kernels know nothing of chunks, and those that decode of nothing on the left.
  __device__ __forceinline__ MaskRuleOf<int> mask() const {
    if constexpr (C.is_stream_k()) return {.right = params_.mask.right};
    return C.general() ? params_.mask : MaskRuleOf<int>{params_.mask.left, params_.mask.right};
  }

  // The blocks of the warpgroup that has the tile's rows from `first_row` on.
  __device__ __forceinline__ typename WorkTileOf<C>::Blocks blocks_of(
      int first_row, const cuda::QueryRows& queries, int seqlen_k, int first_key,
      int most_blocks) const {
    const PackGqa pack = params_.output.pack;
    const int seqlen_q = queries.used;
    const int q_begin = pack.query(first_row);
    const int past_end = pack.query(first_row + kRowsPerWarpgroup);
    if (q_begin >= queries.count) return {};
    if (C.general() && q_begin >= seqlen_q) return {.count = 1, .edge = Edge::of_nothing()};
    const int q_end = past_end < seqlen_q ? past_end : seqlen_q;
    const auto blocks_under = [&](const MaskRuleOf<int>& rule) {
      const auto range = block_range(rule, q_begin, q_end, seqlen_q, seqlen_k).from(first_key);
      const auto edge = Edge::of(rule, q_begin, q_end, seqlen_q, seqlen_k).from(first_key);
      return C.can_split() ? row_blocks_of_split(range, edge, C.shape.block_n, most_blocks)
                           : row_blocks(range, edge, C.shape.block_n);
    };
    auto blocks = C.can_split() && hides_right_only(mask()) ? blocks_under({.right = mask().right})
                                                            : blocks_under(mask());
    // Rows past the end are zeros where they are clipped, and where the tensor ends with the
    // sequence. Elsewhere they hold anything: only online steps look at no row but their own.
    const bool ends_in_zeros = params_.q_is_clipped || seqlen_q == params_.seqlen_q;
    if ((has_varlen_metadata() || is_split()) && !ends_in_zeros && past_end > seqlen_q)
      blocks.online_from = 0;
    if (has_pages<C>(params_) && !recomputes_pages(C)) blocks.online_from = 0;
    return blocks;
  }

 protected:
  const ForwardParams& params_;
};

// Writes work tiles in shared memory, where they are read: the producer has no registers to spare
// for them.
template <Kernel C>
class WorkTileWriter : private WorkTileBlocks<C> {
  using WorkTileBlocks<C>::blocks_of, WorkTileBlocks<C>::mask, WorkTileBlocks<C>::params_,
      WorkTileBlocks<C>::paged;

 public:
  using WorkTileBlocks<C>::WorkTileBlocks;

  // A whole tile. Both ends of a row's keys grow with the row: the first row's begin and the last
  // one's end are the tile's.
  __device__ __forceinline__ void write_tile(WorkTileOf<C>& work, int m_block,
                                             const cuda::QueryRows& queries,
                                             const KeyRows& keys) const {
    const int first_row = m_block * C.shape.block_m;
    int first_key =
        mask().keys_of(params_.output.pack.query(first_row), queries.used, keys.count).begin;
    // Boxes do not cross pages then, nor blocks the ranges of keys that share a scale or a draw.
    if (C.e4m3() && first_key > keys.count) first_key = keys.count;
    if (paged() || C.e4m3() || C.dropout()) first_key -= first_key % C.shape.block_n;
    first_key -= first_key % ScoresOf<C>::kKeysTogether;
    int num_blocks = 0;
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      const typename WorkTileOf<C>::Blocks blocks =
          blocks_of(first_row + w * kRowsPerWarpgroup, queries, keys.count, first_key, kAllBlocks);
      write(work.mine[w], blocks);
      if (blocks.count > num_blocks) num_blocks = blocks.count;
    }
    work.num_blocks = num_blocks;
    work.first_row = first_row;
    work.queries = queries;
    work.keys = keys;
    work.first_key = first_key;
    for (unsigned char& count : work.fired_guards) count = 0;
  }

  // What the consumers need of a split beyond write_split().
  __device__ __forceinline__ void write_blocks(WorkTileOf<C>& work) const {
#pragma unroll 1
    for (int w = 0; w < C.consumers(); ++w) {
      write(work.mine[w], blocks_of(work.first_row + w * kRowsPerWarpgroup, work.queries,
                                    work.keys.count, work.first_key, work.num_blocks));
    }
    for (unsigned char& count : work.fired_guards) count = 0;
  }

 private:
  // A window's fields one by one: stores of four at once would take registers that the producer
  // lacks.
  template <class Edge>
  static __device__ __forceinline__ void write(RowBlocks<Edge>& to, const RowBlocks<Edge>& blocks) {
    to.count = blocks.count;
    to.masked_from = blocks.masked_from;
    to.online_from = blocks.online_from;
    to.edge = blocks.edge;
  }
  static __device__ __forceinline__ void write(RowBlocks<RightEdge>& to,
                                               const RowBlocks<RightEdge>& blocks) {
    to = blocks;
  }
};

}  // namespace fa3::hopper
