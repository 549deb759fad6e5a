// SPDX-License-Identifier: Apache-2.0
// Every byte of shared memory, named. O leaves from registers; only of e4m3 products its earlier
// parts lie here (policies/promoted_sum.cuh), then rows that leave. A consumer warpgroup
// has a pipeline of its own parts of Q, so that none waits for another. Next: producer.cuh.
#pragma once

#include <cstddef>

#include "engine/cuda/mask/bit_mask.cuh"
#include "engine/cuda/softmax/added_lines.h"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/config/e4m3_scales.h"
#include "engine/hopper/config/key_term.h"
#include "engine/hopper/forward/producer/schedule/tile_scheduler.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/scheduler/work_tile.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

inline constexpr int kMaxScaleGroups = 4;

template <Kernel C>
struct E4m3Smem {
  static_assert(consumer_tuning(C).scale_groups <= kMaxScaleGroups);
  static constexpr int kEights = C.shape.head_dim_v / 16;  // of a thread's numbers of O

  static constexpr int kAlignment = consumer_tuning(C).stages_rows ? kSmemAlignment : 16;

  // Also where rows are on their way out, which TMA swizzles by address (staged_rows.cuh).
  alignas(kAlignment) uint32_t promoted_sum[C.consumer_warps()][kEights][kWarpSize][4];
  KeyScales keys[C.shape.kv_stages][kMaxScaleGroups];  // of the stages with a K
  TileScales tiles[kWorkTileStages];
};
struct NoE4m3 {};

// K and V of a quantized cache, as they are loaded.
template <Kernel C>
struct QuantizedSmem {
  alignas(kSmemAlignment) unsigned char tiles[C.loaded_stages()]
                                             [C.tiles_in_smem().loaded_stage_bytes()];
};
struct NotQuantized {};
template <Kernel C>
struct QuantizedPipeline {
  PipelineBarriers<C.loaded_stages()> barriers;
};

// Where V's rows have arrived, which then are transposed where they lie: a barrier for each V, of
// which there are never more than stages.
template <Kernel C>
struct ValueRowsPipeline {
  PipelineBarriers<C.shape.kv_stages> barriers;
};
struct NoValueRows {};

// The bits of the blocks whose K is in a stage, where they are seen in part.
template <Kernel C>
struct MaskBitsSmem {
  alignas(128) unsigned char stages[C.shape.kv_stages][cuda::kMaskBits];
};
struct NoMaskBits {};

// Tiles of a captured tensor (producer/load_captured.cuh).
template <Kernel C>
struct CapturedSmem {
  alignas(kSmemAlignment) unsigned char tiles[C.captured_stages()][C.captured_tile().bytes()];
  PipelineBarriers<C.captured_stages()> pipeline;
};
struct NoCaptured {};

// The terms of a block's keys (key_term.h).
template <Kernel C>
struct KeyTermSmem {
  alignas(128) unsigned char terms[kKeyTermStages][key_term_operand_bytes(C.shape.block_n)];
  unsigned char ones[kCoreMatrixBytes];
  unsigned char zeros[key_term_operand_bytes(C.shape.block_n)];  // behind what they are zeros of
  PipelineBarriers<kKeyTermStages> pipeline;
};
struct NoKeyTerms {};

// The lines of a tile's rows (consumer/score/lines_score.cuh).
template <Kernel C>
struct AddedLinesSmem {
  LinesOfRow rows[C.shape.block_m];
  float references[kAddedReferences][C.shape.block_m];
  KeySpan meet[C.shape.block_m / kRowsPerWarp];  // where the two lines of some row of a warp do
};
struct NoAddedLines {};

template <Kernel C>
struct SmemPlan {
  alignas(kSmemAlignment) unsigned char q[C.shape.q_stages][C.tiles_in_smem().q_bytes()];
  alignas(kSmemAlignment) unsigned char kv[C.shape.kv_stages][C.tiles_in_smem().stage_bytes()];
  [[no_unique_address]] std::conditional_t<kLoadsTile, CapturedSmem<C>, NoCaptured> captured;
  [[no_unique_address]] std::conditional_t<kAddsKeyTerm, KeyTermSmem<C>, NoKeyTerms> key_terms;
  [[no_unique_address]] std::conditional_t<C.transposes_v(), ValueRowsPipeline<C>, NoValueRows>
      value_rows;
  [[no_unique_address]] std::conditional_t<C.block_mask(), MaskBitsSmem<C>, NoMaskBits> mask_bits;
  [[no_unique_address]] std::conditional_t<kAddsLines, AddedLinesSmem<C>, NoAddedLines> added_lines;
  PipelineBarriers<C.shape.q_stages> q_pipelines[C.consumers()];
  PipelineBarriers<C.shape.kv_stages> kv_pipeline;
  PipelineBarriers<kWorkTileStages> work_tile_pipeline;
  WorkTileOf<C> work_tiles[kWorkTileStages];
  using E4m3 = std::conditional_t<C.e4m3(), E4m3Smem<C>, NoE4m3>;
  alignas(64) alignas(E4m3) E4m3 e4m3;
  std::conditional_t<C.dequantizes(), QuantizedPipeline<C>, NotQuantized> quantized_pipeline;
  std::conditional_t<C.dequantizes(), QuantizedSmem<C>, NotQuantized> quantized;
  typename TileScheduler<C>::Smem tiles;

  static_assert(C.tiles_in_smem().q_bytes() % kSmemAlignment == 0 &&
                C.tiles_in_smem().stage_bytes() % kSmemAlignment == 0);
};

// SmemPlan by shared-memory addresses, which is what the hardware's instructions take.
template <Kernel C>
struct SmemAddresses {
  uint32_t base;

  __device__ __forceinline__ uint32_t q(uint32_t stage) const {
    return base + offsetof(SmemPlan<C>, q) + stage * C.tiles_in_smem().q_bytes();
  }
  __device__ __forceinline__ uint32_t kv(uint32_t stage) const {
    return base + offsetof(SmemPlan<C>, kv) + stage * C.tiles_in_smem().stage_bytes();
  }
  __device__ __forceinline__ Pipeline<C.shape.q_stages> q_pipeline(int warpgroup) const {
    return {base + uint32_t{offsetof(SmemPlan<C>, q_pipelines)} +
            warpgroup * uint32_t{sizeof(PipelineBarriers<C.shape.q_stages>)}};
  }
  __device__ __forceinline__ Pipeline<C.shape.kv_stages> kv_pipeline() const {
    return {base + uint32_t{offsetof(SmemPlan<C>, kv_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<kWorkTileStages> work_tile_pipeline() const {
    return {base + uint32_t{offsetof(SmemPlan<C>, work_tile_pipeline)}};
  }
  // Where K and V arrive.
  __device__ __forceinline__ uint32_t loaded(uint32_t stage) const {
    if constexpr (!C.dequantizes()) return kv(stage);
    return base + uint32_t{offsetof(SmemPlan<C>, quantized)} +
           stage * C.tiles_in_smem().loaded_stage_bytes();
  }
  __device__ __forceinline__ Pipeline<C.loaded_stages()> loaded_pipeline() const {
    if constexpr (C.dequantizes())
      return {base + uint32_t{offsetof(SmemPlan<C>, quantized_pipeline)}};
    return {base + uint32_t{offsetof(SmemPlan<C>, kv_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<C.shape.kv_stages> value_rows_pipeline() const {
    return {base + uint32_t{offsetof(SmemPlan<C>, value_rows)}};
  }
  __device__ __forceinline__ uint32_t key_scales(uint32_t stage) const {
    return base + uint32_t{offsetof(SmemPlan<C>, e4m3.keys)} +
           stage * kMaxScaleGroups * uint32_t{sizeof(KeyScales)};
  }
  __device__ __forceinline__ uint32_t mask_bits(uint32_t stage) const {
    return base + uint32_t{offsetof(SmemPlan<C>, mask_bits)} + stage * cuda::kMaskBits;
  }
  __device__ __forceinline__ uint32_t captured(uint32_t stage) const {
    return base + offsetof(SmemPlan<C>, captured) + stage * C.captured_tile().bytes();
  }
  __device__ __forceinline__ Pipeline<C.captured_stages()> captured_pipeline() const {
    return {base + uint32_t{offsetof(SmemPlan<C>, captured.pipeline)}};
  }
  __device__ __forceinline__ uint32_t key_terms(uint32_t stage) const {
    return base + uint32_t{offsetof(SmemPlan<C>, key_terms.terms)} +
           stage * key_term_operand_bytes(C.shape.block_n);
  }
  __device__ __forceinline__ uint32_t key_term_zeros() const {
    return base + uint32_t{offsetof(SmemPlan<C>, key_terms.zeros)};
  }
  __device__ __forceinline__ uint32_t key_term_ones() const {
    return base + uint32_t{offsetof(SmemPlan<C>, key_terms.ones)};
  }
  __device__ __forceinline__ Pipeline<kKeyTermStages> key_term_pipeline() const {
    return {base + uint32_t{offsetof(SmemPlan<C>, key_terms.pipeline)}};
  }
  // The lane's first numbers of a consumer warp's earlier parts of O (policies/promoted_sum.cuh).
  __device__ __forceinline__ uint32_t promoted_sum(uint32_t warp, uint32_t lane) const {
    return base + uint32_t{offsetof(SmemPlan<C>, e4m3.promoted_sum)} +
           (warp * E4m3Smem<C>::kEights * kWarpSize + lane) * 4 * uint32_t{sizeof(uint32_t)};
  }
};

template <Kernel C>
constexpr int smem_bytes() {
  static_assert(sizeof(SmemPlan<C>) <= kMaxSmemBytes);
  return sizeof(SmemPlan<C>);
}

}  // namespace fa3::hopper
