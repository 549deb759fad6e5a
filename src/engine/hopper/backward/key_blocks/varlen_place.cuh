// SPDX-License-Identifier: Apache-2.0
// Where a key block of a sequence with its own length lies, with the query blocks that see it. One
// thread of the CTA writes it down at the start; it is read again at each use: it would take too
// many registers. Next: key_block_work.cuh, listed_place.cuh.
#pragma once

#include "engine/hopper/backward/backward_params.h"
#include "engine/hopper/config/backward_config.h"
#include "engine/hopper/ptx/cluster.cuh"
#include "engine/hopper/tile/load.cuh"

namespace fa3::hopper {

// Where this CTA's key block begins. `n_block` is that of a pair where CTAs come in pairs.
template <BackwardConfig C>
__device__ __forceinline__ int first_key_of(int n_block) {
  const int first = n_block * C.keys_of_cluster();
  if constexpr (C.pairs()) return first + int(ptx::cluster_rank()) * C.shape.block_n;
  return first;
}

// Whether key blocks add to dQ in one order, which dQ's counters keep. Persistent CTAs, which have
// none, draw tiles from the first counter.
template <BackwardConfig C>
__device__ __forceinline__ bool adds_in_order(const BackwardParams& params) {
  return !C.persistent() && params.scratch.dq_semaphore != nullptr;
}

template <BackwardConfig C>
class VarlenPlace {
 public:
  struct Record {
    bool exists;  // there may be fewer key blocks than CTAs
    int sequence;
    int n_block;
    int kv_head;
    cuda::QueryRows keys;
    KeyRows queries;
    ScratchPlace scratch;
  };

  __device__ __forceinline__ VarlenPlace(const BackwardParams& params, Record& mine)
      : params_(params), place_(mine) {}

  __device__ __forceinline__ bool exists() const { return place_.exists; }
  __device__ __forceinline__ int sequence() const { return place_.sequence; }

  // Rows of other sequences are kept out: a NaN there would reach this one, even times a P of zero.
  __device__ __forceinline__ ptx::TileCoordinates keys() const {
    return keys_from(first_key_of<C>(place_.n_block));
  }
  __device__ __forceinline__ ptx::TileCoordinates keys_of_other() const {
    return keys_from(first_key_of<C>(place_.n_block) ^ C.shape.block_n);
  }
  __device__ __forceinline__ ptx::TileCoordinates queries(int head, int m_block) const {
    return tile::clipped_place(place_.queries.begin, place_.queries.count,
                               m_block * C.shape.block_m, C.shape.block_m, head,
                               place_.queries.batch);
  }
  // Unused keys have gradients too: zeros.
  __device__ __forceinline__ ptx::TileCoordinates gradients(int first) const {
    return tile::clipped_place(place_.keys.begin, place_.keys.count, first, kRowsPerWarpgroup,
                               place_.kv_head, place_.keys.batch);
  }
  __device__ __forceinline__ int64_t scratch_block(int head, int m_block) const {
    return params_.scratch.numbers.block(place_.scratch, head, m_block);
  }

 private:
  __device__ __forceinline__ ptx::TileCoordinates keys_from(int first) const {
    return tile::clipped_place(place_.keys.begin, place_.keys.used, first, C.shape.block_n,
                               place_.kv_head, place_.keys.batch);
  }

 protected:
  // The list has tiles of keys: its queries are our keys, and the other way round.
  // n_block_of(tiles, index): which key block the tile of that index is.
  template <class NBlockOf>
  __device__ __forceinline__ void describe_varlen(int tile, const NBlockOf& n_block_of) {
    const int num_kv_heads = params_.order.num_kv_heads;
    const int entry = tile / num_kv_heads;
    place_.exists = entry < *params_.varlen.num_entries;
    if (!place_.exists) return;
    const SequenceTiles& s = params_.varlen.sequences[entry];
    const TileIndex index = s.order.tile(tile - s.first_entry * num_kv_heads);
    place_.n_block = n_block_of(s, index);
    place_.sequence = s.number;
    place_.kv_head = index.pack;
    place_.keys = s.queries;
    place_.queries = s.keys;
    place_.scratch = params_.q_is_packed
                         ? ScratchPlace::of_packed(s.number, s.keys.begin, C.shape.block_m)
                         : ScratchPlace{s.keys.batch, 0};
  }

  const BackwardParams& params_;
  Record& place_;
};

}  // namespace fa3::hopper
