// SPDX-License-Identifier: Apache-2.0
// Decoding by warps that stream keys: for a few query rows, where all that counts is how fast keys come
// and how soon a call is done. The pieces are those of any kernel that decodes (../piece/key_split.h), each
// for a cluster of thread blocks, whose every warp has keys of its own and waits for no other until its
// rows are joined with theirs. All warps find the pieces for themselves. Read first: slots.cuh,
// warp_rows.cuh. Next: join.cuh, merge_parts.cuh.
#pragma once

#include "engine/hopper/ptx/grid.cuh"
#include "engine/hopper/stream/box_ring.cuh"
#include "engine/hopper/stream/join.cuh"
#include "engine/hopper/stream/merge_parts.cuh"
#include "engine/hopper/stream/pieces.cuh"
#include "engine/hopper/stream/row_ring.cuh"

// nvcc 13.0 writes a namespaced class used as a template argument of a kernel by its mangled name into
// the host stub, and forgets to declare that name.
using _ZN3fa36hopper13ForwardConfigE = fa3::hopper::ForwardConfig;

namespace fa3::hopper {

template <ForwardConfig C>
using PartsMerge = std::conditional_t<C.has_tiles(), RowMerge<C>, RunMerge<C>>;

// The rows that a warp has, for others to join: in its slots, which it has read; or in a place of their own,
// where the slots take the next item's keys by then.
template <ForwardConfig C, bool HasOneItem = C.has_tiles()>
struct WarpParts {
  static constexpr int kFloats = C.block_m * WarpRows<C>::kPartStride;
  alignas(16) float parts[StreamSlots<C>::kWarps][kFloats];
  __device__ __forceinline__ float* of(int warp, void*) { return parts[warp]; }
};
template <ForwardConfig C>
struct WarpParts<C, true> {
  static_assert(WarpParts<C, false>::kFloats * int(sizeof(float)) <=
                StreamSlots<C>::kSlots * StreamSlots<C>::kBytes);
  __device__ __forceinline__ float* of(int, void* slots) { return static_cast<float*>(slots); }
};

template <ForwardConfig C>
struct StreamSmem {
  using Slots = StreamSlots<C>;
  alignas(kSmemAlignment) unsigned char slots[Slots::kWarps][Slots::kSlots * Slots::kBytes];
  typename BoxRing<C>::Barriers barriers[Slots::kWarps];
  WarpParts<C> parts;
  JoinSmem<C> join;
  PartsMerge<C>::Smem merge;

  __device__ __forceinline__ float* part(int warp) { return parts.of(warp, slots[warp]); }
};

// Ring: how keys come.
template <ForwardConfig C, class Ring>
class StreamBlock {
  using Slots = StreamSlots<C>;
  using Rows = WarpRows<C>;

 public:
  __device__ __forceinline__ StreamBlock(const ForwardParams& params, StreamSmem<C>& smem, int warp,
                                         RowShare share, typename Slots::Turns turns,
                                         const Ring& ring)
      : params_(params),
        smem_(smem),
        warp_(warp),
        turns_(turns),
        ring_(ring),
        join_(smem.join, warp, params.pieces.rows, share),
        merge_(params, smem.merge, warp, share),
        pieces_(params) {}

  __device__ __forceinline__ void run() {
    if constexpr (C.has_tiles()) {
      stream_one();
    } else {
      stream_all();
    }
  }

 private:
  using Pieces = std::conditional_t<C.has_tiles(), TilePart<C>, RunPieces<C>>;

  __device__ __forceinline__ void stream_one() {
    Rows rows;
    StreamItem item = pieces_.first();
    ptx::griddepcontrol_wait();  // the kernel before may still be running
    if constexpr (C.meets_next_call()) ptx::griddepcontrol_launch_dependents();
    start(item, rows);
    attend(item, rows);
    finish(item, true);
    if constexpr (!C.meets_next_call()) ptx::griddepcontrol_launch_dependents();
    if (item.slot != KeyPiece::kWhole) merge_.end(pieces_.tile(item));
  }

  __device__ __forceinline__ void stream_all() {
    Rows rows;
    StreamItem item, last;
    ptx::griddepcontrol_wait();
#pragma unroll 1
    for (bool is_first = true;; is_first = false) {
      const bool exists = pieces_.next(item);
      // Whose keys are on their way while the last one's rows are joined.
      if (exists) start(item, rows);
      if (!is_first) finish(last, !exists);
      if (!exists) break;
      attend(item, rows);
      last = item;
    }
    join_.close();  // where there was no item
    ptx::griddepcontrol_launch_dependents();
    merge_.end();
  }

  // Its queries and first keys are asked for.
  __device__ __forceinline__ void start(StreamItem& item, Rows& rows) {
    ring_.look_up(item.keys);
    pieces_.look_up();
    pieces_.settle(item);
    steps_ = int(uniform(uint32_t(turns_.slots_of(item.keys.end - item.keys.begin))));
    ring_.start(item.keys.end, steps_);
    const cuda::HeadPack pack = params_.output.pack;
    const auto row_at = [&](int row) -> const uint16_t* {
      const int query = pack.query(row);
      if (query >= item.queries.count) return nullptr;
      return params_.q.at(item.queries.batch, pack.head(item.queries.pack, row), query);
    };
    rows.load_queries(row_at, params_.q.columns);
    if (item.slot != KeyPiece::kWhole) merge_.begin(pieces_.tile(item));
  }

  __device__ __forceinline__ void attend(const StreamItem& item, Rows& rows) {
    const cuda::HeadPack pack = params_.output.pack;
    rows.set_scale(key_scale(item));
    rows.clear();
    rows.fit_queries();
    const bool is_piece = item.slot != KeyPiece::kWhole;
    if constexpr (!C.has_tiles()) {
      if (is_piece) merge_.prepare();
    }
    // Of the keys that are hidden from a row, the first; the first row sees the least.
    const auto end_of = [&](int row) {
      const MaskRuleOf<int> mask{.right = params_.mask.right};
      return mask.keys_of(pack.query(row), item.queries.used, item.num_keys).end;
    };
    const int seen_by_all = end_of(0);
    int first = item.keys.begin + turns_.first_key;
#pragma unroll 1
    for (int step = 0; step < steps_; ++step, first += turns_.step_keys) {
      rows.multiply_keys(ring_.wait_for_k());
      ring_.release_k();
      if (first > seen_by_all - Slots::kKeys) rows.mask(first, end_of);
      rows.weigh();
      rows.multiply_values(ring_.wait_for_v());
      ring_.release_v();
    }
    join_.put(rows, smem_.part(warp_));
    if constexpr (C.has_tiles()) {
      if (is_piece) merge_.prepare(pieces_.tile(item));
    }
  }

  __device__ __forceinline__ float scale_of(const Descales<const float>& of,
                                            const StreamItem& item) const {
    return of.data && item.num_keys > 0 ? *of.at(item.queries.batch, item.keys.kv_head, 0) : 1.0f;
  }
  // Not zero: masked scores are -inf.
  __device__ __forceinline__ float key_scale(const StreamItem& item) const {
    if constexpr (!C.widens()) return params_.scale_log2;
    return fmaxf(scale_of(params_.cache_scales.key, item) * params_.scale_log2, 0x1p-126f);
  }

  // The rows of all warps, joined, to where they belong: a tile, or a piece of one.
  __device__ __forceinline__ void finish(const StreamItem& item, bool is_last) {
    float value_scale = 1.0f;
    if constexpr (C.widens()) value_scale = scale_of(params_.cache_scales.value, item);
    const auto part = [&](int warp) { return smem_.part(warp); };
    join_.all(part, is_last, [&](MergedSum& sum, int row, int column) {
      sum = sum.times(value_scale);
      if (item.slot == KeyPiece::kWhole) {
        const CutTile tile{.queries = item.queries};
        finish_row<C.output(), false>(sum, params_.output, tile, row, column);
      } else {
        store_piece(sum, item.slot, row, column);
      }
    });
  }

  __device__ __forceinline__ void store_piece(const MergedSum& sum, int slot, int row,
                                              int column) const {
    const PieceOutput& to = params_.pieces;
    const int64_t at = to.row(slot, row);
    if (column < to.columns) {
      *reinterpret_cast<float4*>(to.o + at * to.columns + column) = sum.normalised();
    }
    if (column == 0) to.lse[at] = sum.ref + lg2(sum.sum);
  }

  const ForwardParams& params_;
  StreamSmem<C>& smem_;
  const int warp_;
  const typename Slots::Turns turns_;
  Ring ring_;
  Join<C> join_;
  PartsMerge<C> merge_;
  Pieces pieces_;
  int steps_ = 0;  // of the warp, in the current item
};

template <ForwardConfig C>
__global__ void __launch_bounds__(C.threads(), C.stream_blocks())
    stream_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  StreamSmem<C>& smem = *reinterpret_cast<StreamSmem<C>*>(raw_smem);
  const int warp = int(uniform(threadIdx.x / kWarpSize));
  const RowShare share{int(ptx::cluster_rank()), 1 << params.clusters.size_log2};
  // Parts of a tile take turns too.
  using Slots = StreamSlots<C>;
  const int warp_of_cluster = share.first * Slots::kWarps + warp;
  const int part = C.has_tiles() ? int(blockIdx.x) >> params.clusters.size_log2 : 0;
  const typename Slots::Turns turns(part * share.step * Slots::kWarps + warp_of_cluster,
                                    Slots::kWarpsLog2 + params.clusters.size_log2 +
                                        (C.has_tiles() ? params.clusters.parts_log2 : 0));
  const uint32_t slots = ptx::cvta_to_shared(smem.slots[warp]);
  const auto run = [&](const auto& ring) {
    StreamBlock<C, std::decay_t<decltype(ring)>>(params, smem, warp, share, turns, ring).run();
  };
  if constexpr (C.may_box()) {
    if (!params.gathered.active) {
      run(BoxRing<C>(params, slots, ptx::cvta_to_shared(&smem.barriers[warp]), turns));
      return;
    }
  }
  run(RowRing<C>(params, slots, turns));
}

}  // namespace fa3::hopper
