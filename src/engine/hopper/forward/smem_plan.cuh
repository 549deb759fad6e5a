// SPDX-License-Identifier: Apache-2.0
// Every byte of shared memory, named. What a policy or the loader keeps there beside Q, K and V is
// a type of its own, empty for most. O leaves from registers, but for e4m3 products
// (policies/e4m3_smem.cuh). A consumer warpgroup has a pipeline of its own parts of Q, so that none
// waits for another. Next: producer.cuh.
#pragma once

#include <cstddef>
#include <type_traits>

#include "engine/hopper/forward/producer/schedule/tile_scheduler.cuh"
#include "engine/hopper/scheduler/work_tile.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

// The types that a kernel is made of, beside its scheduler. Each has a header of its own.
template <Kernel C, KvLoaderKind = C.kv_loader()>
struct KvLoaderOf;
template <Kernel C>
struct ScoresOf;
template <Kernel C>
struct WeightsOf;
template <Kernel C>
struct SumOf;

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

template <Kernel C>
struct SmemPlan {
  alignas(kSmemAlignment) unsigned char q[C.shape.q_stages][C.tiles_in_smem().q_bytes()];
  alignas(kSmemAlignment) unsigned char kv[C.shape.kv_stages][C.tiles_in_smem().stage_bytes()];
  [[no_unique_address]] typename ScoresOf<C>::Tiles score_tiles;
  [[no_unique_address]] typename KvLoaderOf<C>::Smem loader;
  [[no_unique_address]] typename WeightsOf<C>::Smem weights;
  [[no_unique_address]] typename ScoresOf<C>::Numbers score_numbers;
  PipelineBarriers<C.shape.q_stages> q_pipelines[C.consumers()];
  PipelineBarriers<C.shape.kv_stages> kv_pipeline;
  PipelineBarriers<kWorkTileStages> work_tile_pipeline;
  WorkTileOf<C> work_tiles[kWorkTileStages];
  alignas(64) alignas(typename SumOf<C>::Smem) typename SumOf<C>::Smem sum;
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
};

template <Kernel C>
constexpr int smem_bytes() {
  static_assert(sizeof(SmemPlan<C>) <= kMaxSmemBytes);
  return sizeof(SmemPlan<C>);
}

}  // namespace fa3::hopper
