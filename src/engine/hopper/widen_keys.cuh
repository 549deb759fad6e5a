// SPDX-License-Identifier: Apache-2.0
// Keys and values of a quantized cache become Q's type, since wgmma multiplies operands of one type: the
// copy engine brings e4m3 tiles into a ring of their own, and the warps of the producer's warpgroup
// that load nothing write each again, wide, into the ring that the consumers read. These know nothing
// of it. Every e4m3 number is one of fp16 and of bf16, so nothing is rounded; scales act elsewhere, in
// the scores and on the finished tile. Next: mainloop.cuh.
#pragma once

#include "engine/hopper/piece/roles.cuh"
#include "engine/hopper/piece/smem_plan.cuh"
#include "engine/hopper/ptx/fence.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/unpack.cuh"

namespace fa3::hopper {

// One of the warps: of every tile, it takes each third group of eight rows.
template <ForwardConfig C>
class Widener {
 public:
  __device__ __forceinline__ Widener(SmemPlan<C>& smem, SmemAddresses<C> at, int warp)
      : smem_(smem), at_(at), warp_(warp) {}

  // The order of TmaLoader::load_kv(): K of a block, then V of the block before, across tiles.
  __device__ __forceinline__ void run() {
    bool owes_v = false;
    for (int blocks = next_tile(); blocks > 0; blocks = next_tile()) {
#pragma unroll 1
      for (; blocks > 0; --blocks) {
        widen<C.loaded_k_tile(), C.k_tile()>();
        if (owes_v) widen<C.loaded_v_tile(), C.v_tile()>();
        owes_v = true;
      }
    }
    if (owes_v) widen<C.loaded_v_tile(), C.v_tile()>();
  }

 private:
  // Its number of blocks; 0: there is none.
  __device__ __forceinline__ int next_tile() {
    at_.item_ring().wait_full(item_);
    const int blocks = smem_.items[item_.slot()].num_blocks;
    release(at_.item_ring(), item_.slot());
    item_.advance();
    return blocks;
  }

  template <tile::TileLayout Narrow, tile::TileLayout Wide>
  __device__ __forceinline__ void widen() {
    at_.loaded_ring().wait_full(narrow_);
    at_.kv_ring().wait_empty(wide_);
#pragma unroll 1
    for (int group = warp_; group < Narrow.rows / tile::kSwizzleRows; group += kHelperWarps) {
      const int rows = group * tile::kSwizzleRows;
      widen_rows<Narrow, Wide>(at_.loaded(narrow_.slot()) + rows * Narrow.row_bytes(),
                               at_.kv(wide_.slot()) + rows * Wide.row_bytes());
    }
    ptx::fence_proxy_async();  // wgmma reads what threads have stored
    __syncwarp();
    if (ptx::kEveryLaneArrives || ptx::lane() == 0)
      ptx::mbarrier_arrive(at_.kv_ring().full(wide_.slot()));
    release(at_.loaded_ring(), narrow_.slot());
    narrow_.advance();
    wide_.advance();
  }

  // Eight rows, of which a lane takes 8 numbers at a time: what 16 lanes read, and 8 of them write, is
  // 128 bytes of a row, so that no two meet in a bank.
  template <tile::TileLayout Narrow, tile::TileLayout Wide>
  static __device__ __forceinline__ void widen_rows(uint32_t from, uint32_t to) {
    constexpr int kColumns = 8;
    constexpr int kLanesOfRow = Narrow.columns / kColumns;
    constexpr int kRows = kWarpSize / kLanesOfRow, kSteps = tile::kSwizzleRows / kRows;
    static_assert(kRows * kLanesOfRow == kWarpSize);
    const int first_row = ptx::lane() / kLanesOfRow, column = ptx::lane() % kLanesOfRow * kColumns;
    uint32_t narrow[kSteps][2];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      ptx::ld_shared_b32x2(from + Narrow.element_offset(first_row + i * kRows, column), narrow[i]);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint32_t wide[4];
      ptx::widen_e4m3<C.element>(narrow[i][0], wide[0], wide[1]);
      ptx::widen_e4m3<C.element>(narrow[i][1], wide[2], wide[3]);
      ptx::st_shared_b32x4(to + Wide.chunk_offset(first_row + i * kRows, column), wide);
    }
  }

  template <int Slots>
  static __device__ __forceinline__ void release(const Ring<Slots>& ring, uint32_t slot) {
    __syncwarp();  // every lane has read
    if (ptx::kEveryLaneArrives || ptx::lane() == 0) ring.release(slot);
  }

  SmemPlan<C>& smem_;
  const SmemAddresses<C> at_;
  const int warp_;
  ItemCursor item_;
  RingCursor<C.loaded_slots()> narrow_;
  RingCursor<C.kv_slots> wide_;
};

}  // namespace fa3::hopper
