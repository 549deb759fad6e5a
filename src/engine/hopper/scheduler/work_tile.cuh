// SPDX-License-Identifier: Apache-2.0
// What the producer tells the consumers to do next, one work tile in a small shared-memory
// pipeline. It names the sequence, so that nothing below asks the launch for lengths. A work tile
// outlives its tile's last product: the epilogue reads it again.
#pragma once

#include <type_traits>

#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {

// Two tiles are in work at once (one finishes under the next one's first products), one work tile
// is being written ahead; rounded up to a power of two.
inline constexpr int kWorkTileStages = 4;

inline constexpr int kMaxConsumers = 3;

// What only general kernels tell of a tile.
struct SplitPlace {
  int partial;  // of the results of a split of it (split_kv.h), or TileSplit::kWhole
};
struct NoPlace {};

// Of e4m3 operands, whose scales and transposed values lie by sequence, wherever its keys lie.
struct SequencePlace {
  int partial;
  int sequence;
};

// Of keys and values from a quantized cache, also what their numbers count.
struct CachePlace {
  int partial;
  int sequence;
  float key_scale;  // times softmax scale, and log2(e) unless the scores are capped
  float value_scale;
};

template <class Edge, class Place>
struct WorkTile {
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
using DenseWorkTile = WorkTile<RightEdge, NoPlace>;
using StreamKWorkTile = WorkTile<RightEdge, SplitPlace>;
using GeneralWorkTile = WorkTile<KeyWindow, SplitPlace>;
using GeneralE4m3WorkTile = WorkTile<KeyWindow, SequencePlace>;
using CacheWorkTile = WorkTile<KeyWindow, CachePlace>;
using StreamKCacheWorkTile = WorkTile<RightEdge, CachePlace>;

template <ForwardConfig C>
using GeneralWorkTileOf = std::conditional_t<C.e4m3, GeneralE4m3WorkTile, GeneralWorkTile>;
template <ForwardConfig C>
using SimpleWorkTileOf = std::conditional_t<C.always_splits(), StreamKWorkTile, DenseWorkTile>;
template <ForwardConfig C>
using WorkTileOf =
    std::conditional_t<C.dequantizes(),
                       std::conditional_t<C.always_splits(), StreamKCacheWorkTile, CacheWorkTile>,
                       std::conditional_t<C.general(), GeneralWorkTileOf<C>, SimpleWorkTileOf<C>>>;

template <ForwardConfig C>
__device__ __forceinline__ int sequence_of(const WorkTileOf<C>& item) {
  if constexpr (C.e4m3 && C.general()) {
    return item.place.sequence;
  } else {
    return item.keys.batch;
  }
}

using WorkTileState = PipelineState<kWorkTileStages>;

}  // namespace fa3::hopper
