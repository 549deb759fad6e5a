// SPDX-License-Identifier: Apache-2.0
// What the producer tells the consumers to do next, one record in a small shared-memory ring. It names
// the sequence, so that nothing below asks the launch for lengths. A record outlives its tile's last
// product: the epilogue reads it again.
#pragma once

#include <type_traits>

#include "engine/hopper/piece/key_split.h"
#include "engine/hopper/piece/pipeline.cuh"

namespace fa3::hopper {

// Two tiles are in work at once (one finishes under the next one's first products), one record is
// being written ahead; rounded up to a power of two.
inline constexpr int kItemSlots = 4;

inline constexpr int kMaxConsumers = 3;

// What only general kernels tell of a tile.
struct PiecePlace {
  int slot;  // of the results of a piece of it (key_split.h), or KeyPiece::kWhole
};
struct NoPlace {};

// Of e4m3 operands, whose scales and transposed values lie by sequence, wherever its keys lie.
struct SequencePlace {
  int slot;
  int sequence;
};

// Of keys and values from a quantized cache, also what their numbers count.
struct CachePlace {
  int slot;
  int sequence;
  float key_scale;  // times softmax scale, and log2(e) unless the scores are capped
  float value_scale;
};

template <class Edge, class Place>
struct WorkItem {
  using Blocks = RowBlocks<Edge>;

  int num_blocks;  // key blocks loaded; 0: there are no more tiles
  int first_row;   // of the tile, in its sequence; heads packed
  cuda::QueryRows queries;
  KeyRows keys;
  int first_key;               // of block 0, in the sequence
  Blocks mine[kMaxConsumers];  // of the blocks, what warpgroup w does with them
  // How often warp w had to move references in this tile. Only that warp writes it.
  unsigned char corrections[kMaxConsumers * kWarpsPerWarpgroup];
  Place place;
};

// Whose rows ask which mask policy.
using DenseItem = WorkItem<RightEdge, NoPlace>;
using DecodeItem = WorkItem<RightEdge, PiecePlace>;
using GeneralItem = WorkItem<KeyWindow, PiecePlace>;
using GeneralE4m3Item = WorkItem<KeyWindow, SequencePlace>;
using CacheItem = WorkItem<KeyWindow, CachePlace>;
using DecodeCacheItem = WorkItem<RightEdge, CachePlace>;

template <ForwardConfig C>
using GeneralItemOf = std::conditional_t<C.e4m3, GeneralE4m3Item, GeneralItem>;
template <ForwardConfig C>
using SimpleItemOf = std::conditional_t<C.decodes(), DecodeItem, DenseItem>;
template <ForwardConfig C>
using ItemOf =
    std::conditional_t<C.widens(), std::conditional_t<C.decodes(), DecodeCacheItem, CacheItem>,
                       std::conditional_t<C.general(), GeneralItemOf<C>, SimpleItemOf<C>>>;

template <ForwardConfig C>
__device__ __forceinline__ int sequence_of(const ItemOf<C>& item) {
  if constexpr (C.e4m3 && C.general()) {
    return item.place.sequence;
  } else {
    return item.keys.batch;
  }
}

using ItemCursor = RingCursor<kItemSlots>;

}  // namespace fa3::hopper
