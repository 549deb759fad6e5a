// SPDX-License-Identifier: Apache-2.0
// Where the key block of a CTA under a block mask lies, and the query blocks of its lists: two
// classes with one interface, for sequences of one length and of their own. Next:
// listed_key_block.cuh.
#pragma once

#include <type_traits>

#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/tile/load.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
class DenseListedPlace {
 public:
  struct Record {};  // nothing in shared memory

  __device__ __forceinline__ DenseListedPlace(const BackwardParams& params, int tile, Record&)
      : params_(params), at_(ordered(params, params.order.unsplit_at(tile))) {}

  __device__ __forceinline__ static constexpr bool exists() { return true; }
  __device__ __forceinline__ int n_block() const { return at_.n_block; }
  __device__ __forceinline__ int kv_head() const { return at_.kv_head; }
  __device__ __forceinline__ int sequence() const { return at_.batch; }
  __device__ __forceinline__ int seqlen_q() const { return params_.extents.seqlen_q; }
  __device__ __forceinline__ float scale() const { return params_.scale; }
  __device__ __forceinline__ int list_of(int head) const {
    return params_.lists.number(at_.batch, head, at_.n_block);
  }

  __device__ __forceinline__ ptx::TileCoordinates keys() const {
    return {0, at_.n_block * C.block_n, at_.kv_head, at_.batch};
  }
  __device__ __forceinline__ ptx::TileCoordinates queries(int head, int m_block) const {
    return {0, m_block * C.block_m, head, at_.batch};
  }
  __device__ __forceinline__ ptx::TileCoordinates gradients(int first) const {
    return {0, first, at_.kv_head, at_.batch};
  }
  __device__ __forceinline__ int64_t scratch_block(int head, int m_block) const {
    return params_.scratch.numbers.block(at_.batch, head, m_block);
  }

 private:
  // A head's key blocks come by the lengths of their lists, the longest first.
  __device__ __forceinline__ static KeyBlockIndex ordered(const BackwardParams& params,
                                                          KeyBlockIndex at) {
    if (params.scratch.dq_semaphore != nullptr) return at;  // they come in the order of additions
    const int head = at.kv_head * params.heads_per_kv_head;
    at.n_block = params.lists.ranked(at.batch, head, params.lists.num_lists - 1 - at.n_block);
    return at;
  }

  const BackwardParams& params_;
  const KeyBlockIndex at_;
};

// One thread writes it down at the start; it is read again at each use (key_block_work.cuh). A
// sequence's lists lie where its entries of the list of key tiles do.
template <BackwardConfig C>
class SequenceListedPlace {
 public:
  struct Record {
    bool exists;  // there may be fewer key blocks than CTAs
    int n_block;
    int kv_head;
    int list;  // of the sequence's first key block
    int sequence;
    cuda::QueryRows keys;
    KeyRows queries;
    ScratchPlace scratch;
  };

  __device__ __forceinline__ SequenceListedPlace(const BackwardParams& params, int tile,
                                                 Record& mine)
      : params_(params), mine_(mine) {
    if (threadIdx.x == 0) describe(tile);
  }

  __device__ __forceinline__ bool exists() const { return mine_.exists; }
  __device__ __forceinline__ int n_block() const { return mine_.n_block; }
  __device__ __forceinline__ int kv_head() const { return mine_.kv_head; }
  __device__ __forceinline__ int sequence() const { return mine_.sequence; }
  __device__ __forceinline__ int seqlen_q() const { return mine_.queries.count; }
  __device__ __forceinline__ float scale() const {
    return mine_.keys.used == 1 ? params_.scale_of_one_key : params_.scale;
  }
  __device__ __forceinline__ int list_of(int head) const { return list_of(head, mine_.n_block); }

  // Rows of other sequences are kept out, and unused keys have gradients too: zeros.
  __device__ __forceinline__ ptx::TileCoordinates keys() const {
    return tile::clipped_place(mine_.keys.begin, mine_.keys.used, mine_.n_block * C.block_n,
                               C.block_n, mine_.kv_head, mine_.keys.batch);
  }
  __device__ __forceinline__ ptx::TileCoordinates queries(int head, int m_block) const {
    return tile::clipped_place(mine_.queries.begin, mine_.queries.count, m_block * C.block_m,
                               C.block_m, head, mine_.queries.batch);
  }
  __device__ __forceinline__ ptx::TileCoordinates gradients(int first) const {
    return tile::clipped_place(mine_.keys.begin, mine_.keys.count, first, kRowsPerWarpgroup,
                               mine_.kv_head, mine_.keys.batch);
  }
  __device__ __forceinline__ int64_t scratch_block(int head, int m_block) const {
    return params_.scratch.numbers.block(mine_.scratch, head, m_block);
  }

 private:
  // Blocks for which lengths that add up to too many rows leave no entry have the last list.
  __device__ __forceinline__ int list_of(int head, int n_block) const {
    const int list = mine_.list + n_block, last = params_.lists.num_lists - 1;
    return params_.lists.number(0, head, list < last ? list : last);
  }

  // The list has tiles of keys: its queries are our keys, and the other way round.
  __device__ __forceinline__ void describe(int tile) {
    const int num_kv_heads = params_.order.num_kv_heads;
    const int entry = tile / num_kv_heads;
    mine_.exists = entry < *params_.varlen.num_entries;
    if (!mine_.exists) return;
    const SequenceTiles& s = params_.varlen.sequences[entry];
    const TileIndex index = s.order.tile(tile - s.first_entry * num_kv_heads);
    mine_.kv_head = index.pack;
    mine_.list = s.first_entry;
    mine_.sequence = s.number;
    mine_.keys = s.queries;
    mine_.queries = s.keys;
    mine_.scratch = params_.q_is_packed ? ScratchPlace::of_packed(s.number, s.keys.begin, C.block_m)
                                        : ScratchPlace{s.keys.batch, 0};
    mine_.n_block = ordered(index, s.order.num_m_blocks);
  }
  // The longest list first; in deterministic calls in the order of additions.
  __device__ __forceinline__ int ordered(const TileIndex& index, int num_blocks) const {
    if (params_.scratch.dq_semaphore != nullptr) return num_blocks - 1 - index.m_block;
    const int head = index.pack * params_.heads_per_kv_head;
    return params_.lists.lengths[list_of(head, index.m_block)].nth;
  }

  const BackwardParams& params_;
  Record& mine_;
};

template <BackwardConfig C>
using ListedPlace = std::conditional_t<C.general(), SequenceListedPlace<C>, DenseListedPlace<C>>;

}  // namespace fa3::hopper
