// SPDX-License-Identifier: Apache-2.0
// Work tiles: what the producer announces to the consumers, in a small pipeline in shared memory. A
// work tile describes its sequence, so that consumers need no lengths from the launch. It outlives
// its tile's last product: the epilogue reads it again.
#pragma once

#include <type_traits>

#include "engine/cuda/feature_params.h"
#include "engine/cuda/mask/right_edge.h"
#include "engine/cuda/mask/row_blocks.h"
#include "engine/cuda/softmax/constants.h"
#include "engine/cuda/tile/sequences.h"
#include "engine/hopper/config/kernel.h"
#include "engine/hopper/pipeline/pipeline.cuh"

namespace fa3::hopper {

// Two tiles are in work at once (one finishes under the next one's first products), one work tile
// is being written ahead; rounded up to a power of two.
inline constexpr int kWorkTileStages = 4;

inline constexpr int kMaxConsumers = 3;

// What a work tile holds beside rows and keys, by kind of kernel. `sequence`: its number; scales
// and transposed values lie by it, wherever its keys lie.
struct NoPlace {
  __device__ __forceinline__ void set_sequence(int, int) {}
  __device__ __forceinline__ int sequence_or(int batch) const { return batch; }
};

// Tiles that may be split.
struct SplitPlace : NoPlace {
  int partial;  // of the split's results (split_kv.h), or TileSplit::kNotSplit
};

// Tiles whose splits the CTA that opens them may combine (combine/combine_opener.cuh).
struct OpenedPlace : NoPlace {
  int partial;
  int later_splits;  // of the tile, whose results it adds to this split's
};

// Dropout, score functions and the largest score: each sequence has draws or numbers of its own.
struct DropoutPlace {
  int partial;
  int sequence;

  __device__ __forceinline__ void set_sequence(int number, int) { sequence = number; }
  __device__ __forceinline__ int sequence_or(int) const { return sequence; }
};

// A block mask: blocks count by their place in this list; the last one is visited first.
struct ListPlace : NoPlace {
  const cuda::ListedBlock* blocks;
};

// A block mask over sequences that have lengths of their own.
struct VarlenListPlace {
  const cuda::ListedBlock* blocks;
  int sequence;

  __device__ __forceinline__ void set_sequence(int number, int) { sequence = number; }
  __device__ __forceinline__ int sequence_or(int) const { return sequence; }
};

// e4m3 operands.
struct SequencePlace {
  int partial;
  int sequence;

  // Rows that no sequence owns borrow the first one's scales, which change nothing.
  __device__ __forceinline__ void set_sequence(int number, int num_sequences) {
    sequence = number < num_sequences ? number : 0;
  }
  __device__ __forceinline__ int sequence_or(int) const { return sequence; }
};

// A quantized cache: also what the numbers of K and V are multiplied by.
struct CachePlace {
  int partial;
  int sequence;
  float key_scale;  // times softmax scale, and log2(e) unless the scores are capped
  float value_scale;

  __device__ __forceinline__ void set_sequence(int number, int) { sequence = number; }
  __device__ __forceinline__ int sequence_or(int) const { return sequence; }
};

template <class Edge, class Place>
struct WorkTile {
  using Blocks = RowBlocks<Edge>;

  int num_blocks;  // key blocks to load; 0: there are no more tiles
  int first_row;   // of the tile, in its sequence; heads packed
  cuda::QueryRows queries;
  KeyRows keys;
  int first_key;               // of block 0, in the sequence
  Blocks mine[kMaxConsumers];  // what warpgroup w does with each block
  // How often the guard has fired in warp w in this tile. Only that warp writes it.
  unsigned char fired_guards[kMaxConsumers * kWarpsPerWarpgroup];
  Place place;
};

// Queries of always split tiles have one length: their sequences are batch entries.
FA3_HD constexpr bool counts_sequences(const Kernel& c) {
  return c.outputs.max_logit && !c.is_stream_k();
}

// The work tile of a kernel. Kernels with windows ask for both ends of a row's keys; lists have
// them in their bits.
template <Kernel C>
struct WorkTileTypes {
  using Edge = std::conditional_t<C.general() && !C.block_mask(), KeyWindow, RightEdge>;
  using Lists = std::conditional_t<C.general(), VarlenListPlace, ListPlace>;
  using OwnSplit = std::conditional_t<C.combine() == CombineKind::kOpener, OpenedPlace, SplitPlace>;
  using OwnPlace =
      std::conditional_t<C.e4m3(), SequencePlace,
                         std::conditional_t<C.dropout() || kHasScoreFunction || counts_sequences(C),
                                            DropoutPlace, OwnSplit>>;
  using Place = std::conditional_t<
      C.dequantizes(), CachePlace,
      std::conditional_t<
          C.block_mask(), Lists,
          std::conditional_t<C.scheduler() == SchedulerKind::kDense, NoPlace, OwnPlace>>>;
};
template <Kernel C>
using WorkTileOf = WorkTile<typename WorkTileTypes<C>::Edge, typename WorkTileTypes<C>::Place>;

template <Kernel C>
__device__ __forceinline__ int sequence_of(const WorkTileOf<C>& work) {
  return work.place.sequence_or(work.keys.batch);
}
// For kernels whose keys may lie in another entry than the queries.
template <class Work>
__device__ __forceinline__ int sequence_of_queries(const Work& work) {
  return work.place.sequence_or(work.queries.batch);
}

// The key of the sequence where the keys of block 0 begin; and, from there on, where those of a
// block do that begins with the tile's key `first_key`. Of a block mask, whose blocks stand in a
// list, keys count from the sequence's first.
template <class Work>
__device__ __forceinline__ int first_key_of(const Work& work) {
  if constexpr (requires { work.place.blocks; }) {
    return 0;
  } else {
    return work.first_key;
  }
}
template <class Work>
__device__ __forceinline__ int key_in_tile(const Work& work, int first_key) {
  if constexpr (requires { work.place.blocks; }) {
    return listed_key(work.place.blocks, first_key);
  } else {
    return first_key;
  }
}

using WorkTileState = PipelineState<kWorkTileStages>;

}  // namespace fa3::hopper
