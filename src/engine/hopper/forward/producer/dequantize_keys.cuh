// SPDX-License-Identifier: Apache-2.0
// Keys and values of a quantized cache become fp16, since wgmma multiplies operands of one type:
// TMA brings 8-bit tiles into a pipeline of their own, and the warps of the producer's
// warpgroup that load nothing write each again, wide, into the pipeline that the consumers read.
// These know nothing of it. Every number of e4m3 and of e5m2 is one of fp16, so nothing is rounded;
// scales act elsewhere, in the scores and on the finished tile. Next: rescale_queries.cuh, which
// brings bf16 queries to fp16.
#pragma once

#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/ptx/unpack.cuh"

namespace fa3::hopper {

// One of the warps: of every tile, it takes each third group of eight rows.
template <Kernel C>
class Dequantizer {
 public:
  __device__ __forceinline__ Dequantizer(const ForwardParams& params, SmemPlan<C>& smem,
                                         SmemAddresses<C> at, int warp)
      : smem_(smem), at_(at), warp_(warp), is_e5m2_(params.cache_is_e5m2) {}

  static __device__ __forceinline__ bool takes_part(const ForwardParams&) { return true; }
  static __device__ __forceinline__ void init_pipelines(SmemAddresses<C> at, int consumers) {
    constexpr int kArrivals = kHelperWarps * ptx::kArrivalsOfWarp;
    at.loaded_pipeline().init(kArrivals);
    at.kv_pipeline().init(consumers, kArrivals);
  }

  // The order of KvLoader::load(): K of a block, then V of the block before, across tiles.
  __device__ __forceinline__ void run() {
    bool has_delayed_v = false;
    for (int blocks = next_tile(); blocks > 0; blocks = next_tile()) {
#pragma unroll 1
      for (; blocks > 0; --blocks) {
        dequantize<C.tiles_in_smem().loaded_k, C.tiles_in_smem().k>();
        if (has_delayed_v) dequantize<C.tiles_in_smem().loaded_v, C.tiles_in_smem().v>();
        has_delayed_v = true;
      }
    }
    if (has_delayed_v) dequantize<C.tiles_in_smem().loaded_v, C.tiles_in_smem().v>();
  }

 private:
  static constexpr int kMostRead = 24;  // registers
  template <tile::TileLayout Layout>
  static constexpr int kGroupBytes = Layout.row_bytes() * tile::kSwizzleRows;

  // Its number of blocks; 0: there is none.
  __device__ __forceinline__ int next_tile() {
    at_.work_tile_pipeline().wait_full(work_tile_);
    const int blocks = smem_.work_tiles[work_tile_.stage()].num_blocks;
    release(at_.work_tile_pipeline(), work_tile_.stage());
    work_tile_.advance();
    return blocks;
  }

  // What a lane takes of a group of eight rows: 8 numbers of a row at a time, so that what 16 lanes
  // read, and 8 of them write, is 128 bytes of a row, and no two meet in a bank.
  template <tile::TileLayout Quantized>
  struct Share {
    static constexpr int kColumns = 8;
    static constexpr int kLanesOfRow = Quantized.columns / kColumns;
    static constexpr int kRows = kWarpSize / kLanesOfRow, kSteps = tile::kSwizzleRows / kRows;
    static_assert(kRows * kLanesOfRow == kWarpSize);
  };

  // As many groups at a time as registers hold are read before the first is converted: so a warp
  // waits for shared memory once, and for the stage to write into meanwhile.
  template <tile::TileLayout Quantized, tile::TileLayout Dequantized>
  __device__ __forceinline__ void dequantize() {
    using Of = Share<Quantized>;
    constexpr int kGroups = Quantized.rows / tile::kSwizzleRows;
    constexpr int kOwn = (kGroups + kHelperWarps - 1) / kHelperWarps;  // of a warp, at most
    constexpr int kMost = kMostRead / (2 * Of::kSteps), kAtOnce = kOwn < kMost ? kOwn : kMost;
    at_.loaded_pipeline().wait_full(quantized_);
    const uint32_t from = at_.loaded(quantized_.stage()) + warp_ * kGroupBytes<Quantized>;
    const uint32_t to = at_.kv(dequantized_.stage()) + warp_ * kGroupBytes<Dequantized>;
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
        const int offset = group * kGroupBytes<Quantized> + Quantized.element_offset(row, column);
        ptx::ld_shared_b32x2(from + offset, eight);
      });
      if (first == 0) at_.kv_pipeline().wait_empty(dequantized_);
      each([&](int group, int row, int column, const uint32_t(&eight)[2]) {
        uint32_t wide[4];
        ptx::dequantize(eight[0], is_e5m2_, wide[0], wide[1]);
        ptx::dequantize(eight[1], is_e5m2_, wide[2], wide[3]);
        const int offset = group * kGroupBytes<Dequantized> + Dequantized.chunk_offset(row, column);
        ptx::st_shared_b32x4(to + offset, wide);
      });
    }
    // wgmma reads what threads have stored, and TMA writes over what they have read.
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::kEveryLaneArrives || ptx::lane() == 0) {
      ptx::mbarrier_arrive(at_.kv_pipeline().full(dequantized_.stage()));
    }
    release(at_.loaded_pipeline(), quantized_.stage());
    quantized_.advance();
    dequantized_.advance();
  }

  template <int Stages>
  static __device__ __forceinline__ void release(const Pipeline<Stages>& pipeline, uint32_t stage) {
    __syncwarp();  // every lane has read
    if (ptx::kEveryLaneArrives || ptx::lane() == 0) pipeline.release(stage);
  }

  SmemPlan<C>& smem_;
  const SmemAddresses<C> at_;
  const int warp_;
  const bool is_e5m2_;
  WorkTileState work_tile_;
  PipelineState<C.loaded_stages()> quantized_;
  PipelineState<C.shape.kv_stages> dequantized_;
};

}  // namespace fa3::hopper
