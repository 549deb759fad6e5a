// SPDX-License-Identifier: Apache-2.0
// What a cluster attends to, one item after the other: a tile, or a piece of one. All warps find it for
// themselves. Next: stream_kernel.cuh.
#pragma once

#include "engine/hopper/merge_last.cuh"
#include "engine/hopper/piece/sequence_window.cuh"
#include "engine/hopper/stream/slots.cuh"

namespace fa3::hopper {

// A tile's rows and some of its keys.
struct StreamItem {
  cuda::QueryRows queries{};
  StreamedKeys keys{};
  int num_keys = 0;  // of the sequence
  int slot = KeyPiece::kWhole;
};

template <ForwardConfig C>
__device__ __forceinline__ KeySplit stream_split(const ForwardParams& params) {
  KeySplit split = params.split.for_decoding();
  split.block_n = C.block_n;
  split.sequences.block_m = C.block_m;
  return split;
}

// The pieces of a run of key blocks (../piece/key_split.h).
template <ForwardConfig C>
class RunPieces {
 public:
  __device__ __forceinline__ explicit RunPieces(const ForwardParams& params)
      : packs_per_kv_head_(params.packs_per_kv_head),
        pieces_(stream_split<C>(params), AnySequences(stream_split<C>(params)),
                int(blockIdx.x >> params.clusters.size_log2),
                int(gridDim.x >> params.clusters.size_log2)) {}

  // The next one that holds work.
  __device__ __forceinline__ bool next(StreamItem& item) {
    SequenceTiles s;
    bool exists = false;
#pragma unroll 1
    while (!exists && !pieces_.done()) exists = pieces_.next(s, piece_);
    if (!exists) return false;
    s.queries.pack = piece_.pack;
    const int begin = piece_.blocks.first * C.block_n;
    const int past = begin + piece_.blocks.count * C.block_n;
    item = {s.queries,
            {s.keys.batch, piece_.pack / packs_per_kv_head_, begin, min(past, s.keys.count),
             min(past, s.keys.count)},
            s.keys.count,
            piece_.slot};
    return true;
  }

  // Nothing is left to look up, or to wait for.
  __device__ __forceinline__ void look_up() const {}
  __device__ __forceinline__ void settle(StreamItem&) const {}

  // Of which the last item is a piece.
  __device__ __forceinline__ CutTile tile(const StreamItem& item) const {
    CutTile cut = pieces_.cut_tile_of_run(piece_);
    cut.queries = item.queries;
    return cut;
  }

 private:
  const int packs_per_kv_head_;
  PieceStream<AnySequences> pieces_;
  KeyPiece piece_{};
};

// One sequence, each of whose tiles is in as many parts, a cluster each, whose warps take turns. The grid:
// parts, each a cluster; key heads; packs of query heads of each. Where the first keys lie depends on no
// length: it is looked up while the length is on its way.
template <ForwardConfig C>
class TilePart {
 public:
  __device__ __forceinline__ explicit TilePart(const ForwardParams& params)
      : params_(params), part_(int(blockIdx.x >> params.clusters.size_log2)) {}

  // There is no other. Says what parameters say, whatever the kernel before is about to store.
  __device__ __forceinline__ StreamItem first() {
    StreamItem item;
    const SequenceList& list = params_.split.sequences;
    item.queries.pack = pack();
    item.queries.count = item.queries.used = int(list.lengths_q.max);
    item.keys.kv_head = int(blockIdx.y);
    item.keys.most = int(list.lengths_k.max);
    if (params_.clusters.parts_log2 > 0) item.slot = first_slot() + part_;
    return item;
  }

  __device__ __forceinline__ void look_up() {
    const auto& lengths = params_.split.sequences.lengths_k;
    told_ = int(lengths.max);
    if (lengths.seqused != nullptr) told_ = *lengths.seqused;
  }

  // When the length is there.
  __device__ __forceinline__ void settle(StreamItem& item) const {
    item.num_keys = item.keys.end = KeySplit::within(told_, item.keys.most);
  }

  __device__ __forceinline__ CutTile tile(const StreamItem& item) const {
    return {.queries = item.queries,
            .num_pieces = 1 << params_.clusters.parts_log2,
            .first_slot = first_slot(),
            .later_slots = first_slot(),
            .slot_step = 1};
  }

 private:
  static __device__ __forceinline__ int pack() { return int(blockIdx.y * gridDim.z + blockIdx.z); }
  __device__ __forceinline__ int first_slot() const {
    return pack() << params_.clusters.parts_log2;
  }

  const ForwardParams& params_;
  const int part_;
  int told_ = 0;  // the sequence's length
};

}  // namespace fa3::hopper
