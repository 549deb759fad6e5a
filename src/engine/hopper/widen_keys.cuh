// SPDX-License-Identifier: Apache-2.0
// Keys and values of a quantized cache become fp16, since wgmma multiplies operands of one type: the copy
// engine brings e4m3 tiles into a ring of their own, and the warps of the producer's warpgroup that
// load nothing write each again, wide, into the ring that the consumers read. These know nothing of it.
// Every e4m3 number is one of fp16, so nothing is rounded; scales act elsewhere, in the scores and on
// the finished tile. Next: fit_queries.cuh, which brings bf16 queries to fp16.
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
  static constexpr int kMostRead = 24;  // registers
  template <tile::TileLayout Layout>
  static constexpr int kGroupBytes = Layout.row_bytes() * tile::kSwizzleRows;

  // Its number of blocks; 0: there is none.
  __device__ __forceinline__ int next_tile() {
    at_.item_ring().wait_full(item_);
    const int blocks = smem_.items[item_.slot()].num_blocks;
    release(at_.item_ring(), item_.slot());
    item_.advance();
    return blocks;
  }

  // What a lane takes of a group of eight rows: 8 numbers of a row at a time, so that what 16 lanes
  // read, and 8 of them write, is 128 bytes of a row, and no two meet in a bank.
  template <tile::TileLayout Narrow>
  struct Share {
    static constexpr int kColumns = 8;
    static constexpr int kLanesOfRow = Narrow.columns / kColumns;
    static constexpr int kRows = kWarpSize / kLanesOfRow, kSteps = tile::kSwizzleRows / kRows;
    static_assert(kRows * kLanesOfRow == kWarpSize);
  };

  // As many groups at a time as registers hold are read before the first is converted: so a warp waits
  // for shared memory once, and for the slot to write into meanwhile.
  template <tile::TileLayout Narrow, tile::TileLayout Wide>
  __device__ __forceinline__ void widen() {
    using Of = Share<Narrow>;
    constexpr int kGroups = Narrow.rows / tile::kSwizzleRows;
    constexpr int kOwn = (kGroups + kHelperWarps - 1) / kHelperWarps;  // of a warp, at most
    constexpr int kMost = kMostRead / (2 * Of::kSteps), kAtOnce = kOwn < kMost ? kOwn : kMost;
    at_.loaded_ring().wait_full(narrow_);
    const uint32_t from = at_.loaded(narrow_.slot()) + warp_ * kGroupBytes<Narrow>;
    const uint32_t to = at_.kv(wide_.slot()) + warp_ * kGroupBytes<Wide>;
#pragma unroll
    for (int first = 0; first < kOwn; first += kAtOnce) {
      uint32_t read[kAtOnce][Of::kSteps][2];
      const auto each = [&](auto&& visit) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int group = (first + i) * kHelperWarps;
          if (group >= kGroups) break;
          if (group + kHelperWarps > kGroups && group + warp_ >= kGroups) break;
#pragma unroll
          for (int step = 0; step < Of::kSteps; ++step) {
            visit(group, ptx::lane() / Of::kLanesOfRow + step * Of::kRows,
                  ptx::lane() % Of::kLanesOfRow * Of::kColumns, read[i][step]);
          }
        }
      };
      each([&](int group, int row, int column, uint32_t(&eight)[2]) {
        const int offset = group * kGroupBytes<Narrow> + Narrow.element_offset(row, column);
        ptx::ld_shared_b32x2(from + offset, eight);
      });
      if (first == 0) at_.kv_ring().wait_empty(wide_);
      each([&](int group, int row, int column, const uint32_t(&eight)[2]) {
        uint32_t wide[4];
        ptx::widen_e4m3(eight[0], wide[0], wide[1]);
        ptx::widen_e4m3(eight[1], wide[2], wide[3]);
        const int offset = group * kGroupBytes<Wide> + Wide.chunk_offset(row, column);
        ptx::st_shared_b32x4(to + offset, wide);
      });
    }
    // wgmma reads what threads have stored, and the copy engine writes over what they have read.
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::kEveryLaneArrives || ptx::lane() == 0) {
      ptx::mbarrier_arrive(at_.kv_ring().full(wide_.slot()));
    }
    release(at_.loaded_ring(), narrow_.slot());
    narrow_.advance();
    wide_.advance();
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
