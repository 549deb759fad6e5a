// SPDX-License-Identifier: Apache-2.0
// What a cluster attends to, one item after the other: a tile, or a split of one. All warps find it
// for themselves. Next: decode_kernel.cuh.
#pragma once

#include "engine/hopper/combine/combine_last.cuh"
#include "engine/hopper/decode/any_sequences.cuh"
#include "engine/hopper/decode/stages.cuh"

namespace fa3::hopper {

// A tile's rows and some of its keys.
struct DecodeTile {
  cuda::QueryRows queries{};
  DecodeKeys keys{};
  int num_keys = 0;  // of the sequence
  int partial = TileSplit::kNotSplit;
};

template <Kernel C>
__device__ __forceinline__ SplitKvSchedule decode_schedule(const ForwardParams& params) {
  SplitKvSchedule schedule = params.schedule.for_decoding();
  schedule.block_n = C.shape.block_n;
  schedule.sequences.block_m = C.shape.block_m;
  return schedule;
}

// The splits of a range of key blocks (scheduler/split_kv.h).
template <Kernel C>
class RangeTiles {
 public:
  __device__ __forceinline__ explicit RangeTiles(const ForwardParams& params)
      : packs_per_kv_head_(params.packs_per_kv_head),
        splits_(decode_schedule<C>(params), AnySequences(decode_schedule<C>(params)),
                int(blockIdx.x >> params.clusters.size_log2),
                int(gridDim.x >> params.clusters.size_log2)) {}

  // The next one that holds work.
  __device__ __forceinline__ bool next(DecodeTile& item) {
    SequenceTiles s;
    bool exists = false;
#pragma unroll 1
    while (!exists && !splits_.done()) exists = splits_.next(s, tile_split_);
    if (!exists) return false;
    s.queries.pack = tile_split_.pack;
    const int begin = tile_split_.blocks.first * C.shape.block_n;
    const int past = begin + tile_split_.blocks.count * C.shape.block_n;
    item = {s.queries,
            {s.keys.batch, tile_split_.pack / packs_per_kv_head_, begin, min(past, s.keys.count),
             min(past, s.keys.count)},
            s.keys.count,
            tile_split_.partial};
    return true;
  }

  // Nothing is left to look up, or to wait for.
  __device__ __forceinline__ void look_up() const {}
  __device__ __forceinline__ void settle(DecodeTile&) const {}

  // The tile that the last item is a split of.
  __device__ __forceinline__ CombineTile tile(const DecodeTile& item) const {
    CombineTile combine = splits_.combine_tile_of_range(tile_split_);
    combine.queries = item.queries;
    return combine;
  }

 private:
  const int packs_per_kv_head_;
  SplitIterator<AnySequences> splits_;
  TileSplit tile_split_{};
};

// One sequence, each of whose tiles is in as many parts, a cluster each, whose warps take turns.
// The grid: parts, each a cluster; key heads; packs of query heads of each. Where the first keys
// lie depends on no length: it is looked up while the length is on its way.
template <Kernel C>
class SingleTile {
 public:
  __device__ __forceinline__ explicit SingleTile(const ForwardParams& params)
      : params_(params), part_(int(blockIdx.x >> params.clusters.size_log2)) {}

  // There is no other. Says what parameters say, whatever the kernel before is about to store.
  __device__ __forceinline__ DecodeTile first() {
    DecodeTile item;
    const VarlenMetadata& list = params_.schedule.sequences;
    item.queries.pack = pack();
    item.queries.count = item.queries.used = int(list.lengths_q.max);
    item.keys.kv_head = int(blockIdx.y);
    item.keys.most = int(list.lengths_k.max);
    if (params_.clusters.parts_log2 > 0) item.partial = first_partial() + part_;
    return item;
  }

  __device__ __forceinline__ void look_up() {
    const auto& lengths = params_.schedule.sequences.lengths_k;
    length_ = int(lengths.max);
    if (lengths.seqused != nullptr) length_ = *lengths.seqused;
  }

  // When the length is there.
  __device__ __forceinline__ void settle(DecodeTile& item) const {
    item.num_keys = item.keys.end = SplitKvSchedule::within(length_, item.keys.most);
  }

  __device__ __forceinline__ CombineTile tile(const DecodeTile& item) const {
    return {.queries = item.queries,
            .num_splits = 1 << params_.clusters.parts_log2,
            .first_partial = first_partial(),
            .later_partials = first_partial(),
            .partial_step = 1};
  }

 private:
  static __device__ __forceinline__ int pack() { return int(blockIdx.y * gridDim.z + blockIdx.z); }
  __device__ __forceinline__ int first_partial() const {
    return pack() << params_.clusters.parts_log2;
  }

  const ForwardParams& params_;
  const int part_;
  int length_ = 0;  // the sequence's length
};

}  // namespace fa3::hopper
