// SPDX-License-Identifier: Apache-2.0
// The work of one CTA: a key block, the query blocks that see it, head after head of the group that
// shares the keys, and where all of them lie. Three classes with one interface: for dense kernels,
// for general ones, with windows and varlen sequences, and for block masks
// (listed_key_block.cuh). Next: backward_smem.cuh.
#pragma once

#include <type_traits>

#include "engine/hopper/backward/key_blocks/listed_key_block.cuh"
#include "engine/hopper/backward/key_blocks/varlen_place.cuh"

namespace fa3::hopper {

// One of the query blocks.
struct QueryBlock {
  int head;
  int m_block;

  __device__ __forceinline__ static QueryBlock first(const BackwardParams& params, int kv_head,
                                                     QuerySteps steps) {
    return {kv_head * params.heads_per_kv_head, steps.first_block};
  }
  __device__ __forceinline__ void advance(QuerySteps steps) {
    if (++m_block == steps.end_block) {
      m_block = steps.first_block;
      ++head;
    }
  }
};

template <BackwardConfig C>
class DenseKeyBlock {
 public:
  struct Record {};  // nothing in shared memory
  using Block = QueryBlock;

  __device__ __forceinline__ DenseKeyBlock(const BackwardParams& params, int tile, Record&)
      : params_(params) {
    move_to(tile);
  }

  __device__ __forceinline__ void move_to(int tile) {
    at_ = C.splits_steps() ? params_.order.at(tile / C.ctas())
                           : params_.order.unsplit_at(tile / C.ctas());
    steps_ = query_steps(params_.extents, at_.n_block * C.keys_of_cluster(), C.keys_of_cluster(),
                         C.shape.block_m);
    num_steps_ = steps_of_group();
    if constexpr (C.splits_steps()) num_steps_ = share().count;
  }

  __device__ __forceinline__ static constexpr bool exists() { return true; }
  __device__ __forceinline__ int first_key() const { return first_key_of<C>(at_.n_block); }
  __device__ __forceinline__ int num_steps() const { return num_steps_; }
  __device__ __forceinline__ QuerySteps steps() const { return steps_; }
  __device__ __forceinline__ QueryBlock first_queries() const {
    QueryBlock block = QueryBlock::first(params_, at_.kv_head, steps_);
    if constexpr (C.splits_steps()) {
      const int first = share().first;
      const int head = first / max(steps_.per_head(), 1);
      block.head += head;
      block.m_block += first - head * steps_.per_head();
    }
    return block;
  }
  __device__ __forceinline__ QueryBlock first_loaded() const { return first_queries(); }
  __device__ __forceinline__ int sequence() const { return at_.batch; }
  __device__ __forceinline__ const BackwardExtents& extents() const { return params_.extents; }
  __device__ __forceinline__ float scale() const { return params_.scale; }

  // Where the key block lies, a query block, and the 64 keys of which a warpgroup stores gradients.
  __device__ __forceinline__ ptx::TileCoordinates keys() const { return keys_from(first_key()); }
  __device__ __forceinline__ ptx::TileCoordinates keys_of_other() const {
    return keys_from(first_key() ^ C.shape.block_n);
  }
  __device__ __forceinline__ ptx::TileCoordinates queries(QueryBlock block) const {
    return {0, block.m_block * C.shape.block_m, block.head, at_.batch};
  }
  __device__ __forceinline__ ptx::TileCoordinates gradients(int first) const {
    return {0, first, at_.kv_head, at_.batch};
  }
  __device__ __forceinline__ int64_t scratch_block(QueryBlock block) const {
    return params_.scratch.numbers.block(at_.batch, block.head, block.m_block);
  }
  __device__ __forceinline__ int dq_order(QueryBlock block) const {
    return C.ctas() * dq_order_of(params_.extents, at_.n_block, C.keys_of_cluster(), block.m_block,
                                  C.shape.block_m);
  }
  // Whether this warp's rows of a part of dQ begin before the queries' end.
  __device__ __forceinline__ static constexpr bool has_rows(QueryBlock, int /*part*/) {
    return true;
  }

 private:
  __device__ __forceinline__ ptx::TileCoordinates keys_from(int first) const {
    return {0, first, at_.kv_head, at_.batch};
  }
  // The queries of all heads that share the keys.
  __device__ __forceinline__ int steps_of_group() const {
    return steps_.per_head() * params_.heads_per_kv_head;
  }
  __device__ __forceinline__ KeyBlockOrder::Share share() const {
    return params_.order.share_of(steps_of_group(), at_.step_split);
  }

  const BackwardParams& params_;
  KeyBlockIndex at_;  // of a pair: both key blocks
  QuerySteps steps_;
  int num_steps_;
};

template <BackwardConfig C>
class VarlenKeyBlock : public VarlenPlace<C> {
  using Base = VarlenPlace<C>;
  using Base::params_, Base::place_;

 public:
  struct Record {
    typename Base::Record place;
    SequenceExtents extents;
    QuerySteps steps;
    int num_steps;
  };
  using Block = QueryBlock;

  __device__ __forceinline__ VarlenKeyBlock(const BackwardParams& params, int tile, Record& mine)
      : Base(params, mine.place), mine_(mine) {
    if (threadIdx.x == 0) describe(tile);
  }

  __device__ __forceinline__ int first_key() const { return first_key_of<C>(place_.n_block); }
  __device__ __forceinline__ int num_steps() const { return mine_.num_steps; }
  __device__ __forceinline__ QuerySteps steps() const { return mine_.steps; }
  __device__ __forceinline__ QueryBlock first_queries() const {
    return QueryBlock::first(params_, place_.kv_head, mine_.steps);
  }
  __device__ __forceinline__ QueryBlock first_loaded() const { return first_queries(); }
  __device__ __forceinline__ const SequenceExtents& extents() const { return mine_.extents; }
  __device__ __forceinline__ float scale() const {
    return mine_.extents.seqlen_k == 1 ? params_.scale_of_one_key : params_.scale;
  }
  __device__ __forceinline__ ptx::TileCoordinates queries(QueryBlock block) const {
    return Base::queries(block.head, block.m_block);
  }
  __device__ __forceinline__ int64_t scratch_block(QueryBlock block) const {
    return Base::scratch_block(block.head, block.m_block);
  }
  __device__ __forceinline__ int dq_order(QueryBlock block) const {
    return C.ctas() * dq_order_of(mine_.extents, place_.n_block, C.keys_of_cluster(), block.m_block,
                                  C.shape.block_m);
  }
  __device__ __forceinline__ bool has_rows(QueryBlock block, int part) const {
    return block.m_block * C.shape.block_m +
               C.dq_accum().first_row_of_warp(part, int(threadIdx.x)) <
           place_.queries.count;
  }

 private:
  __device__ __forceinline__ void describe(int tile) {
    if (params_.varlen.sequences) {
      Base::describe_varlen(tile / C.ctas(), [&](const SequenceTiles& s, const TileIndex& index) {
        return params_.order.last_keys_first ? index.m_block
                                             : s.order.num_m_blocks - 1 - index.m_block;
      });
    } else {
      const KeyBlockIndex at = params_.order.unsplit_at(tile / C.ctas());
      place_.exists = true;
      place_.sequence = at.batch;
      place_.n_block = at.n_block;
      place_.kv_head = at.kv_head;
      place_.keys = {at.batch, 0, 0, params_.extents.seqlen_k, params_.extents.seqlen_k};
      place_.queries = {at.batch, 0, params_.extents.seqlen_q};
      place_.scratch = {at.batch, 0};
    }
    if (!place_.exists) return;
    const int first = place_.n_block * C.keys_of_cluster();
    mine_.extents =
        SequenceExtents::of(place_.queries.count, place_.keys.used, params_.mask, first);
    mine_.steps = query_steps(mine_.extents, first, C.keys_of_cluster(), C.shape.block_m);
    mine_.num_steps = mine_.steps.per_head() * params_.heads_per_kv_head;
  }

  Record& mine_;
};

template <BackwardConfig C>
using KeyBlockWork =
    std::conditional_t<C.block_mask(), ListedKeyBlock<C>,
                       std::conditional_t<C.general(), VarlenKeyBlock<C>, DenseKeyBlock<C>>>;

}  // namespace fa3::hopper
