// SPDX-License-Identifier: Apache-2.0
// The work of one CTA: a key block, the query blocks that see it, head after head of the group that
// shares the keys, and where all of them lie. Three classes with one interface: for dense kernels,
// for general ones, with windows and varlen sequences, and for block masks
// (listed_key_block.cuh). Next: backward_smem.cuh.
#pragma once

#include <type_traits>

#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/backward/listed_key_block.cuh"
#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/tile/load.cuh"

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
      : params_(params),
        at_(C.splits_heads ? params.order.at(tile) : params.order.unsplit_at(tile)),
        steps_(query_steps(params.extents, at_.n_block * C.block_n, C.block_n, C.block_m)),
        num_steps_(steps_.per_head() * heads()) {}

  __device__ __forceinline__ static constexpr bool exists() { return true; }
  __device__ __forceinline__ int first_key() const { return at_.n_block * C.block_n; }
  __device__ __forceinline__ int num_steps() const { return num_steps_; }
  __device__ __forceinline__ QuerySteps steps() const { return steps_; }
  __device__ __forceinline__ QueryBlock first_queries() const {
    QueryBlock block = QueryBlock::first(params_, at_.kv_head, steps_);
    block.head += at_.head_split * heads();
    return block;
  }
  __device__ __forceinline__ QueryBlock first_loaded() const { return first_queries(); }
  __device__ __forceinline__ int sequence() const { return at_.batch; }
  __device__ __forceinline__ const BackwardExtents& extents() const { return params_.extents; }
  __device__ __forceinline__ float scale() const { return params_.scale; }

  // Where the key block lies, a query block, and the 64 keys of which a warpgroup stores gradients.
  __device__ __forceinline__ ptx::TileCoordinates keys() const {
    return {0, first_key(), at_.kv_head, at_.batch};
  }
  __device__ __forceinline__ ptx::TileCoordinates queries(QueryBlock block) const {
    return {0, block.m_block * C.block_m, block.head, at_.batch};
  }
  __device__ __forceinline__ ptx::TileCoordinates gradients(int first) const {
    return {0, first, at_.kv_head, at_.batch};
  }
  __device__ __forceinline__ int64_t scratch_block(QueryBlock block) const {
    return params_.scratch.numbers.block(at_.batch, block.head, block.m_block);
  }
  __device__ __forceinline__ int dq_order(QueryBlock block) const {
    return dq_order_of(params_.extents, at_.n_block, C.block_n, block.m_block, C.block_m);
  }
  // Whether this warp's rows of a part of dQ begin before the queries' end.
  __device__ __forceinline__ static constexpr bool has_rows(QueryBlock, int /*part*/) {
    return true;
  }

 private:
  // Query heads of this CTA.
  __device__ __forceinline__ int heads() const {
    return params_.heads_per_kv_head / (C.splits_heads ? params_.order.head_splits : 1);
  }

  const BackwardParams& params_;
  const KeyBlockIndex at_;
  const QuerySteps steps_;
  const int num_steps_;
};

// One thread writes the work tile at the start. It is read again at each use: it would take too
// many registers.
template <BackwardConfig C>
class SequenceKeyBlock {
 public:
  struct Record {
    bool exists;  // there may be fewer key blocks than CTAs
    int sequence;
    int n_block;
    int kv_head;
    cuda::QueryRows keys;
    KeyRows queries;
    ScratchPlace scratch;
    SequenceExtents extents;
    QuerySteps steps;
    int num_steps;
  };
  using Block = QueryBlock;

  __device__ __forceinline__ SequenceKeyBlock(const BackwardParams& params, int tile, Record& mine)
      : params_(params), mine_(mine) {
    if (threadIdx.x == 0) describe(tile);
  }

  __device__ __forceinline__ bool exists() const { return mine_.exists; }
  __device__ __forceinline__ int first_key() const { return mine_.n_block * C.block_n; }
  __device__ __forceinline__ int num_steps() const { return mine_.num_steps; }
  __device__ __forceinline__ QuerySteps steps() const { return mine_.steps; }
  __device__ __forceinline__ QueryBlock first_queries() const {
    return QueryBlock::first(params_, mine_.kv_head, mine_.steps);
  }
  __device__ __forceinline__ QueryBlock first_loaded() const { return first_queries(); }
  __device__ __forceinline__ int sequence() const { return mine_.sequence; }
  __device__ __forceinline__ const SequenceExtents& extents() const { return mine_.extents; }
  __device__ __forceinline__ float scale() const {
    return mine_.extents.seqlen_k == 1 ? params_.scale_of_one_key : params_.scale;
  }

  // Rows of other sequences are kept out: a NaN there would reach this one, even times a P of zero.
  __device__ __forceinline__ ptx::TileCoordinates keys() const {
    return tile::clipped_place(mine_.keys.begin, mine_.keys.used, first_key(), C.block_n,
                               mine_.kv_head, mine_.keys.batch);
  }
  __device__ __forceinline__ ptx::TileCoordinates queries(QueryBlock block) const {
    return tile::clipped_place(mine_.queries.begin, mine_.queries.count, block.m_block * C.block_m,
                               C.block_m, block.head, mine_.queries.batch);
  }
  // Unused keys have gradients too: zeros.
  __device__ __forceinline__ ptx::TileCoordinates gradients(int first) const {
    return tile::clipped_place(mine_.keys.begin, mine_.keys.count, first, kRowsPerWarpgroup,
                               mine_.kv_head, mine_.keys.batch);
  }
  __device__ __forceinline__ int64_t scratch_block(QueryBlock block) const {
    return params_.scratch.numbers.block(mine_.scratch, block.head, block.m_block);
  }
  __device__ __forceinline__ int dq_order(QueryBlock block) const {
    return dq_order_of(mine_.extents, mine_.n_block, C.block_n, block.m_block, C.block_m);
  }
  __device__ __forceinline__ bool has_rows(QueryBlock block, int part) const {
    return block.m_block * C.block_m + C.dq_accum().first_row_of_warp(part, int(threadIdx.x)) <
           mine_.queries.count;
  }

 private:
  __device__ __forceinline__ void describe(int tile) {
    if (params_.varlen.sequences) {
      describe_varlen(tile);
    } else {
      const KeyBlockIndex at = params_.order.unsplit_at(tile);
      mine_.exists = true;
      mine_.sequence = at.batch;
      mine_.n_block = at.n_block;
      mine_.kv_head = at.kv_head;
      mine_.keys = {at.batch, 0, 0, params_.extents.seqlen_k, params_.extents.seqlen_k};
      mine_.queries = {at.batch, 0, params_.extents.seqlen_q};
      mine_.scratch = {at.batch, 0};
    }
    if (!mine_.exists) return;
    mine_.extents =
        SequenceExtents::of(mine_.queries.count, mine_.keys.used, params_.mask, first_key());
    mine_.steps = query_steps(mine_.extents, first_key(), C.block_n, C.block_m);
    mine_.num_steps = mine_.steps.per_head() * params_.heads_per_kv_head;
  }

  // The list has tiles of keys: its queries are our keys, and the other way round.
  __device__ __forceinline__ void describe_varlen(int tile) {
    const int num_kv_heads = params_.order.num_kv_heads;
    const int entry = tile / num_kv_heads;
    mine_.exists = entry < *params_.varlen.num_entries;
    if (!mine_.exists) return;
    const SequenceTiles& s = params_.varlen.sequences[entry];
    const TileIndex index = s.order.tile(tile - s.first_entry * num_kv_heads);
    mine_.n_block =
        params_.order.last_keys_first ? index.m_block : s.order.num_m_blocks - 1 - index.m_block;
    mine_.sequence = s.number;
    mine_.kv_head = index.pack;
    mine_.keys = s.queries;
    mine_.queries = s.keys;
    mine_.scratch = params_.q_is_packed ? ScratchPlace::of_packed(s.number, s.keys.begin, C.block_m)
                                        : ScratchPlace{s.keys.batch, 0};
  }

  const BackwardParams& params_;
  Record& mine_;
};

template <BackwardConfig C>
using KeyBlockWork =
    std::conditional_t<C.block_mask, ListedKeyBlock<C>,
                       std::conditional_t<C.general(), SequenceKeyBlock<C>, DenseKeyBlock<C>>>;

}  // namespace fa3::hopper
