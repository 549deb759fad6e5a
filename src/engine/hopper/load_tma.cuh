// SPDX-License-Identifier: Apache-2.0
// The producer: one thread that draws tiles, announces them, and has the copy engine load them. For
// every key block it loads K, then V of the block before it, because a consumer multiplies Q K^T of
// one block together with P V of the previous one, across tiles too. Next: mainloop.cuh.
#pragma once

#include "engine/hopper/forward_params.h"
#include "engine/hopper/piece/smem_plan.cuh"
#include "engine/hopper/ptx/tma.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class Producer {
 public:
  __device__ __forceinline__ Producer(const ForwardParams& params, SmemPlan<C>& smem,
                                      SmemAddresses<C> at)
      : params_(params), smem_(smem), at_(at) {}

  __device__ __forceinline__ void run() {
    for (int tile = blockIdx.x; tile < params_.order.num_tiles();) {
      tile = load_tile<true>(tile, kAllWarps);
    }
    finish(ItemKind::kDrain);
    collect_all_marks();
    while (redo_head_ >= 0) {
      const RedoEntry entry = params_.redo[redo_head_];
      load_tile<false>(redo_head_, entry.warps);
      redo_head_ = entry.next_tile;
    }
    finish(ItemKind::kDone);
  }

 private:
  static constexpr unsigned kAllWarps = ~0u;
  static constexpr tile::TileLayout kQ{C.block_m, C.head_dim};
  static constexpr tile::TileLayout kK{C.block_n, C.head_dim};
  static constexpr tile::TileLayout kV{C.block_n, C.head_dim_v};

  struct Block {
    int key;
    int kv_head;
    int batch;
  };

  __device__ __forceinline__ int draw(int tile) {
    const int stride = static_cast<int>(gridDim.x);
    return params_.ticket_counter ? atomicAdd(params_.ticket_counter, 1) + stride : tile + stride;
  }

  // Loads a tile; on the first pass also draws the next one, as late as the answer's microsecond
  // allows: the later a tile is drawn, the better the end of the work evens out.
  template <bool FirstPass>
  __device__ __forceinline__ int load_tile(int tile, unsigned storing_warps) {
    const TileIndex index = params_.order.tile(tile);
    const int first_row = index.m_block * C.block_m;
    WorkItem item{ItemKind::kTile, visible(first_row, C.block_m).count, tile, index};
    for (int w = 0; w < C.consumers(); ++w) {
      const int warpgroup_row = first_row + w * kRowsPerWarpgroup;
      if (warpgroup_row < params_.seqlen_q << params_.pack_log2) {
        item.mine[w] = visible(warpgroup_row, kRowsPerWarpgroup);
        if (!FirstPass) item.mine[w].ordinary_from = 0;
      }
    }
    item.storing_warps = storing_warps;
    announce(item);

    const int kv_head = index.head / params_.packs_per_kv_head;
    const int draw_at = item.num_blocks > 1 ? 1 : 0;
    int next_tile = 0;
    for (int n_block = item.num_blocks - 1; n_block >= 0; --n_block) {
      const Block block{n_block * C.block_n, kv_head, index.batch};
      const bool first = n_block == item.num_blocks - 1;
      if (FirstPass && n_block == draw_at) next_tile = draw(tile);
      if (first && C.q_slots > 1) load_q(index, first_row);
      load_kv(params_.k_map, kK, block);
      load_pending_v();
      if (first && C.q_slots == 1) load_q(index, first_row);  // the spent Q is let go of only now
      pending_v_ = block;
      has_pending_v_ = true;
    }
    return next_tile;
  }

  __device__ __forceinline__ KeyBlocks visible(int first_row, int num_rows) const {
    const int pack = params_.pack_log2;
    return key_blocks(first_row >> pack, num_rows >> pack, C.block_n, params_.seqlen_q,
                      params_.seqlen_k, params_.causal);
  }

  __device__ __forceinline__ void finish(ItemKind kind) {
    announce({kind});
    load_pending_v();
  }

  __device__ __forceinline__ void announce(const WorkItem& item) {
    at_.item_ring().wait_empty(items_);
    collect_mark(items_);
    smem_.items[items_.slot()] = item;
    ptx::mbarrier_arrive(at_.item_ring().full(items_.slot()));
    items_.advance();
  }

  // A record nobody reads any more may say that some warps want their rows of its tile done again.
  __device__ __forceinline__ void collect_mark(ItemCursor at) {
    WorkItem& item = smem_.items[at.slot()];
    if (item.marked_warps != 0) {
      params_.redo[item.tile] = {redo_head_, item.marked_warps};
      redo_head_ = item.tile;
      item.marked_warps = 0;
    }
  }

  __device__ __forceinline__ void collect_all_marks() {
    ItemCursor at = items_;
    for (int i = 0; i < kItemSlots; ++i) {
      at_.item_ring().wait_empty(at);
      collect_mark(at);
      at.advance();
    }
  }

  // In parts, each as soon as its warpgroup has let go of the one before.
  __device__ __forceinline__ void load_q(const TileIndex& index, int first_row) {
#pragma unroll 1  // the producer has few registers
    for (int w = 0; w < C.consumers(); ++w) {
      const Ring<C.q_slots> ring = at_.q_ring(w);
      const int part_row = w * kRowsPerWarpgroup;
      ring.wait_empty(q_);
      load(params_.q_map, kQ, kRowsPerWarpgroup, at_.q(q_.slot()) + part_row * kQ.row_bytes(),
           ring.full(q_.slot()),
           {0, (first_row + part_row) >> params_.pack_log2, index.head, index.batch});
    }
    q_.advance();
  }

  __device__ __forceinline__ void load_kv(const CUtensorMap& map, tile::TileLayout layout,
                                          const Block& block) {
    at_.kv_ring().wait_empty(kv_);
    load(map, layout, layout.rows, at_.kv(kv_.slot()), at_.kv_ring().full(kv_.slot()),
         {0, block.key, block.kv_head, block.batch});
    kv_.advance();
  }

  __device__ __forceinline__ void load_pending_v() {
    if (has_pending_v_) {
      load_kv(params_.v_map, kV, pending_v_);
    }
    has_pending_v_ = false;
  }

  // Some rows of a tile, one copy a slab. Bytes outside the tensor arrive as zeros and count like
  // others.
  __device__ __forceinline__ void load(const CUtensorMap& map, tile::TileLayout layout, int rows,
                                       uint32_t smem, uint32_t barrier, ptx::TileCoordinates at) {
    ptx::mbarrier_arrive_expect_tx(barrier, layout.slabs() * rows * layout.row_bytes());
    for (int slab = 0; slab < layout.slabs(); ++slab) {
      at.column = slab * layout.slab_columns();
      ptx::cp_async_bulk_tensor_load(smem + slab * layout.slab_bytes(), map, at, barrier);
    }
  }

  const ForwardParams& params_;
  SmemPlan<C>& smem_;
  const SmemAddresses<C> at_;
  RingCursor<C.q_slots> q_;
  RingCursor<C.kv_slots> kv_;
  ItemCursor items_;
  Block pending_v_{};
  bool has_pending_v_ = false;
  int redo_head_ = -1;
};

}  // namespace fa3::hopper
