// SPDX-License-Identifier: Apache-2.0
// What the plain kernel keeps in shared memory, which tiles a thread block gets, and the copies of a
// tile, issued by a producer thread or by a consumer. Next: plain_kernel.cuh.
#pragma once

#include <cstddef>

#include "engine/hopper/forward_params.h"
#include "engine/hopper/piece/pipeline.cuh"
#include "engine/hopper/piece/work_item.cuh"
#include "engine/hopper/ptx/tma.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

template <ForwardConfig C>
struct PlainSmem {
  alignas(kSmemAlignment) unsigned char q[C.q_slots][C.q_bytes()];
  alignas(kSmemAlignment) unsigned char kv[C.kv_slots][C.slot_bytes()];
  RingBarriers<C.q_slots> q_ring;
  RingBarriers<C.kv_slots> kv_ring;
  int any_marked;
};

template <ForwardConfig C>
constexpr int plain_smem_bytes() {
  static_assert(sizeof(PlainSmem<C>) <= kMaxSmemBytes);
  return sizeof(PlainSmem<C>);
}

template <ForwardConfig C>
struct PlainAddresses {
  uint32_t base;
  __device__ __forceinline__ uint32_t q(uint32_t slot) const {
    return base + offsetof(PlainSmem<C>, q) + slot * C.q_bytes();
  }
  __device__ __forceinline__ uint32_t kv(uint32_t slot) const {
    return base + offsetof(PlainSmem<C>, kv) + slot * C.slot_bytes();
  }
  __device__ __forceinline__ Ring<C.q_slots> q_ring() const {
    return {base + uint32_t{offsetof(PlainSmem<C>, q_ring)}};
  }
  __device__ __forceinline__ Ring<C.kv_slots> kv_ring() const {
    return {base + uint32_t{offsetof(PlainSmem<C>, kv_ring)}};
  }
};

// The tiles of this thread block in one pass. The second pass does those with a mark again.
class DealtTiles {
 public:
  __device__ __forceinline__ DealtTiles(const ForwardParams& params, bool second_pass)
      : params_(&params), second_pass_(second_pass), tile_(static_cast<int>(blockIdx.x)) {
    skip_unmarked();
  }
  __device__ __forceinline__ bool done() const { return tile_ >= params_->order.num_tiles(); }
  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ void advance() {
    tile_ += static_cast<int>(gridDim.x);
    skip_unmarked();
  }

 private:
  __device__ __forceinline__ void skip_unmarked() {
    while (second_pass_ && !done() && params_->redo[tile_].warps == 0) {
      tile_ += static_cast<int>(gridDim.x);
    }
  }
  const ForwardParams* params_;
  bool second_pass_;
  int tile_;
};

// Key blocks of some rows of a tile; rows may be those of several packed heads.
template <ForwardConfig C>
__device__ __forceinline__ KeyBlocks blocks_of_rows(const ForwardParams& params, int first_row,
                                                    int num_rows) {
  const int pack = params.pack_log2;
  return key_blocks(first_row >> pack, num_rows >> pack, C.block_n, params.seqlen_q,
                    params.seqlen_k, params.causal);
}

// Issues the copies of a tile: Q, then K of each block, V as many blocks later as the consumers
// multiply it later. Used by one thread. Its hot part is a few dozen instructions: without a producer,
// a warp of consumers waits for each of them.
template <ForwardConfig C>
class PlainLoader {
 public:
  __device__ __forceinline__ PlainLoader(const ForwardParams& params, PlainAddresses<C> at)
      : params_(params), at_(at) {}

  __device__ __forceinline__ void load_q(int tile) {
    const TileIndex index = params_.order.tile(tile);
    const int first_row = index.m_block * C.block_m;
    batch_ = index.batch;
    kv_head_ = index.head / params_.packs_per_kv_head;
    num_blocks_ = blocks_of_rows<C>(params_, first_row, C.block_m).count;
    next_k_ = next_v_ = 0;
    at_.q_ring().wait_empty(q_);
    const uint32_t full = at_.q_ring().full(q_.slot());
    ptx::mbarrier_arrive_expect_tx(full, kQ.bytes());
    for (int row = 0; row < C.block_m; row += kQBoxRows) {
      load_slabs(params_.q_map, kQ, at_.q(q_.slot()) + row * kQ.row_bytes(), full,
                 {0, (first_row + row) >> params_.pack_log2, index.head, index.batch});
    }
    q_.advance();
  }

  __device__ __forceinline__ bool done() const { return next_v_ == num_blocks_; }

  __device__ __forceinline__ void load_all() {
    while (!done()) {
      at_.kv_ring().wait_empty(kv_);
      load_k_or_v();
    }
  }

  // As many as there is room for now.
  __device__ __forceinline__ void load_what_fits() {
    while (!done() &&
           ptx::mbarrier_test_wait_parity(at_.kv_ring().empty(kv_.slot()), kv_.phase() ^ 1)) {
      load_k_or_v();
    }
  }

 private:
  static constexpr int kLag = C.stages == 3 ? 2 : 1;   // blocks from a K to the V beside it
  static constexpr int kQBoxRows = kRowsPerWarpgroup;  // as launch_forward.cpp encodes the map
  static constexpr tile::TileLayout kQ{C.block_m, C.head_dim};
  static constexpr tile::TileLayout kK{C.block_n, C.head_dim};  // and V
  static_assert(C.head_dim == C.head_dim_v);

  __device__ __forceinline__ void load_k_or_v() {
    const bool is_k = next_k_ < num_blocks_ && next_k_ - next_v_ <= kLag;
    const int block = num_blocks_ - 1 - (is_k ? next_k_ : next_v_);
    next_k_ += is_k ? 1 : 0;
    next_v_ += is_k ? 0 : 1;
    const uint32_t full = at_.kv_ring().full(kv_.slot());
    ptx::mbarrier_arrive_expect_tx(full, kK.bytes());
    load_slabs(is_k ? params_.k_map : params_.v_map, kK, at_.kv(kv_.slot()), full,
               {0, block * C.block_n, kv_head_, batch_});
    kv_.advance();
  }

  __device__ __forceinline__ void load_slabs(const CUtensorMap& map, tile::TileLayout layout,
                                             uint32_t smem, uint32_t full,
                                             ptx::TileCoordinates at) {
#pragma unroll
    for (int slab = 0; slab < layout.slabs(); ++slab) {
      at.column = slab * layout.slab_columns();
      ptx::cp_async_bulk_tensor_load(smem + slab * layout.slab_bytes(), map, at, full);
    }
  }

  const ForwardParams& params_;
  const PlainAddresses<C> at_;
  RingCursor<C.q_slots> q_;
  RingCursor<C.kv_slots> kv_;
  int batch_ = 0, kv_head_ = 0;
  int num_blocks_ = 0;
  int next_k_ = 0, next_v_ = 0;
};

}  // namespace fa3::hopper
