// SPDX-License-Identifier: Apache-2.0
//
// A forward kernel as its runs on the machine see it: its configuration, its code, and the parts of
// its shared memory that threads store to or load from. Next: forward_run.h.
#pragma once

#include <vector>

#include "engine/hopper/forward/consumer/promoted_loop.cuh"
#include "engine/hopper/forward/consumer/serial_loop.cuh"
#include "engine/hopper/forward/forward_kernel.cuh"
#include "engine/hopper/forward/policies/max_logit.cuh"
#include "engine/hopper/forward/policies/scores_cached.cuh"
#include "engine/hopper/forward/policies/scores_capped.cuh"
#include "engine/hopper/forward/policies/scores_e4m3.cuh"
#include "engine/hopper/forward/policies/sum_continued.cuh"
#include "engine/hopper/forward/policies/sum_promoted.cuh"
#include "engine/hopper/forward/policies/weights_dropped.cuh"
#include "engine/hopper/forward/policies/weights_listed.cuh"
#include "engine/hopper/forward/producer/load_cp_async.cuh"
#include "engine/hopper/forward/producer/load_quantized.cuh"
#include "engine/hopper/forward/producer/load_tma_e4m3.cuh"
#include "engine/hopper/forward/producer/load_tma_listed.cuh"
#include "engine/hopper/forward/producer/schedule/listed_tiles.cuh"
#include "engine/hopper/forward/producer/schedule/split_tiles.cuh"
#include "engine/hopper/forward/producer/schedule/stream_k_tiles.cuh"
#include "machine.h"

namespace fa3::hopper {

// What a run knows of a kernel's type. Runs themselves are compiled once for all kernels.
struct KernelOnTrial {
  Kernel config;
  int smem_bytes;
  machine::KvBarriers kv_pipeline;
  std::vector<machine::Buffer> buffers;
  void (*kernel)(ForwardParams);
};

template <Kernel C>
std::vector<machine::Buffer> buffers_of() {
  std::vector<machine::Buffer> buffers;
  const SmemAddresses<C> at{machine::kSmemBase};
  if constexpr (C.dequantizes()) {
    for (int stage = 0; stage < C.loaded_stages(); ++stage) {
      buffers.push_back(
          {"e4m3 tile", at.loaded(uint32_t(stage)), C.tiles_in_smem().loaded_stage_bytes()});
    }
    for (int stage = 0; stage < C.shape.kv_stages; ++stage) {
      buffers.push_back({"tile", at.kv(uint32_t(stage)), C.tiles_in_smem().stage_bytes()});
    }
  }
  if constexpr (C.types().rescales_queries()) {
    constexpr tile::TileLayout kQ = C.tiles_in_smem().q;
    for (int part = 0; part < C.shape.q_stages * kQ.slabs() * C.consumer_warps(); ++part) {
      constexpr int kBytes = kRowsPerWarp * kQ.row_bytes();
      const uint32_t address = at.q(0) + uint32_t(part * kBytes);
      buffers.push_back({"queries of a warp", address, kBytes, true});
    }
  }
  if constexpr (C.block_mask()) {
    for (int stage = 0; stage < C.shape.kv_stages; ++stage) {
      buffers.push_back({"bits of a block", mask_bits(at, uint32_t(stage)), cuda::kMaskBits});
    }
  }
  // The first of a warp's chunks of a part of a square stands for all.
  if constexpr (C.transposes_v()) {
    constexpr int kParts = C.shape.block_n / tile::kChunkBytes,
                  kSquares = C.shape.head_dim_v / C.shape.block_n;
    for (int i = 0; i < C.shape.kv_stages * kSquares * kParts * kParts; ++i) {
      const int part = i % (kParts * kParts), square = i / (kParts * kParts);
      const int row = part / kParts * tile::kChunkBytes, column = part % kParts * tile::kChunkBytes;
      const int offset = (square % kSquares * C.shape.block_n + row) * C.shape.block_n + column;
      const uint32_t stage = at.kv(uint32_t(square / kSquares));
      buffers.push_back({"part of values", stage + uint32_t(offset), tile::kChunkBytes, true});
    }
  }
  if constexpr (C.e4m3()) {
    for (int stage = 0; stage < C.shape.kv_stages; ++stage) {
      buffers.push_back({"scales of keys", key_scales(at, uint32_t(stage)),
                         kMaxScaleGroups * int(sizeof(KeyScales))});
    }
    for (int warp = 0; warp < C.consumer_warps(); ++warp) {
      constexpr int kBytes = C.shape.head_dim_v * kRowsPerWarp * bytes_of(Element::kFp16);
      buffers.push_back({"parts of a warp", promoted_sum(at, uint32_t(warp), 0), kBytes});
    }
  }
  return buffers;
}

template <Kernel C>
KernelOnTrial kernel_on_trial() {
  const auto pipeline = SmemAddresses<C>{machine::kSmemBase}.kv_pipeline();
  return {C,
          smem_bytes<C>(),
          {pipeline.full(0), pipeline.empty(0), C.shape.kv_stages},
          buffers_of<C>(),
          forward_kernel<C>};
}

}  // namespace fa3::hopper
