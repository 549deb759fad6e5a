// SPDX-License-Identifier: Apache-2.0
// Where the key block of a CTA under a block mask lies, and the query blocks of its lists: two
// classes with one interface, for sequences of one length and of their own. Next:
// listed_key_block.cuh.
#pragma once

#include <type_traits>

#include "engine/hopper/backward/key_blocks/varlen_place.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
class DenseListedPlace {
 public:
  struct Record {};  // nothing in shared memory

  __device__ __forceinline__ DenseListedPlace(const BackwardParams& params, int tile, Record&)
      : DenseListedPlace(params, ordered(params, params.order.unsplit_at(tile))) {}
  __device__ __forceinline__ DenseListedPlace(const BackwardParams& params, KeyBlockIndex at)
      : params_(params), at_(at) {}

  __device__ __forceinline__ const KeyBlockIndex& index() const { return at_; }
  __device__ __forceinline__ void move_to(int tile) {
    at_ = ordered(params_, params_.order.unsplit_at(tile));
  }

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
    return {0, at_.n_block * C.shape.block_n, at_.kv_head, at_.batch};
  }
  __device__ __forceinline__ ptx::TileCoordinates queries(int head, int m_block) const {
    return {0, m_block * C.shape.block_m, head, at_.batch};
  }
  __device__ __forceinline__ ptx::TileCoordinates gradients(int first) const {
    return {0, first, at_.kv_head, at_.batch};
  }
  __device__ __forceinline__ int64_t scratch_block(int head, int m_block) const {
    return params_.scratch.numbers.block(at_.batch, head, m_block);
  }

 private:
  // A head's key blocks come by the lengths of their lists, the longest first; in deterministic
  // calls in the order of additions.
  __device__ __forceinline__ static KeyBlockIndex ordered(const BackwardParams& params,
                                                          KeyBlockIndex at) {
    if (adds_in_order<C>(params)) return at;
    const int head = at.kv_head * params.heads_per_kv_head;
    at.n_block = params.lists.ranked(at.batch, head, params.lists.num_lists - 1 - at.n_block);
    return at;
  }

  const BackwardParams& params_;
  KeyBlockIndex at_;
};

// A sequence's lists lie where its entries of the list of key tiles do.
template <BackwardConfig C>
class VarlenListedPlace : public VarlenPlace<C> {
  using Base = VarlenPlace<C>;
  using Base::params_, Base::place_;

 public:
  struct Record {
    typename Base::Record place;
    int list;  // of the sequence's first key block
  };

  __device__ __forceinline__ VarlenListedPlace(const BackwardParams& params, int tile, Record& mine)
      : Base(params, mine.place), mine_(mine) {
    if (threadIdx.x == 0) describe(tile);
  }

  __device__ __forceinline__ int n_block() const { return place_.n_block; }
  __device__ __forceinline__ int kv_head() const { return place_.kv_head; }
  __device__ __forceinline__ int seqlen_q() const { return place_.queries.count; }
  __device__ __forceinline__ float scale() const {
    return place_.keys.used == 1 ? params_.scale_of_one_key : params_.scale;
  }
  __device__ __forceinline__ int list_of(int head) const { return list_of(head, place_.n_block); }

 private:
  // Blocks for which lengths that add up to too many rows leave no entry have the last list.
  __device__ __forceinline__ int list_of(int head, int n_block) const {
    const int list = mine_.list + n_block, last = params_.lists.num_lists - 1;
    return params_.lists.number(0, head, list < last ? list : last);
  }

  __device__ __forceinline__ void describe(int tile) {
    Base::describe_varlen(tile, [&](const SequenceTiles& s, const TileIndex& index) {
      mine_.list = s.first_entry;
      return ordered(index, s.order.num_m_blocks);
    });
  }
  // The longest list first; in deterministic calls in the order of additions.
  __device__ __forceinline__ int ordered(const TileIndex& index, int num_blocks) const {
    if (adds_in_order<C>(params_)) return num_blocks - 1 - index.m_block;
    const int head = index.pack * params_.heads_per_kv_head;
    return params_.lists.lengths[list_of(head, index.m_block)].nth;
  }

  Record& mine_;
};

template <BackwardConfig C>
using ListedPlace = std::conditional_t<C.general(), VarlenListedPlace<C>, DenseListedPlace<C>>;

}  // namespace fa3::hopper
