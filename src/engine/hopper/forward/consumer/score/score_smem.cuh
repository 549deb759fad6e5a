// SPDX-License-Identifier: Apache-2.0
// What score functions keep in shared memory: tiles of a captured tensor, terms of keys, or lines
// of rows. Next: function_score.cuh.
#pragma once

#include "engine/cuda/softmax/added_lines.h"
#include "engine/hopper/config/key_term.h"
#include "engine/hopper/forward/smem_plan.cuh"

namespace fa3::hopper {

// Tiles of a captured tensor (producer/load_captured.cuh).
template <Kernel C>
struct CapturedSmem {
  alignas(kSmemAlignment) unsigned char tiles[C.captured_stages()][C.captured_tile().bytes()];
  PipelineBarriers<C.captured_stages()> pipeline;
};
template <Kernel C>
__device__ __forceinline__ uint32_t captured(const SmemAddresses<C>& at, uint32_t stage) {
  return at.base + offsetof(SmemPlan<C>, score_tiles) + stage * C.captured_tile().bytes();
}
template <Kernel C>
__device__ __forceinline__ Pipeline<C.captured_stages()> captured_pipeline(
    const SmemAddresses<C>& at) {
  return {at.base + uint32_t{offsetof(SmemPlan<C>, score_tiles.pipeline)}};
}

// The terms of a block's keys (key_term.h).
template <Kernel C>
struct KeyTermSmem {
  alignas(128) unsigned char terms[kKeyTermStages][key_term_operand_bytes(C.shape.block_n)];
  unsigned char ones[kCoreMatrixBytes];
  unsigned char zeros[key_term_operand_bytes(C.shape.block_n)];  // behind what they are zeros of
  PipelineBarriers<kKeyTermStages> pipeline;
};
template <Kernel C>
__device__ __forceinline__ uint32_t key_terms(const SmemAddresses<C>& at, uint32_t stage) {
  return at.base + uint32_t{offsetof(SmemPlan<C>, score_tiles.terms)} +
         stage * key_term_operand_bytes(C.shape.block_n);
}
template <Kernel C>
__device__ __forceinline__ uint32_t key_term_zeros(const SmemAddresses<C>& at) {
  return at.base + uint32_t{offsetof(SmemPlan<C>, score_tiles.zeros)};
}
template <Kernel C>
__device__ __forceinline__ uint32_t key_term_ones(const SmemAddresses<C>& at) {
  return at.base + uint32_t{offsetof(SmemPlan<C>, score_tiles.ones)};
}
template <Kernel C>
__device__ __forceinline__ Pipeline<kKeyTermStages> key_term_pipeline(const SmemAddresses<C>& at) {
  return {at.base + uint32_t{offsetof(SmemPlan<C>, score_tiles.pipeline)}};
}

// The lines of a tile's rows (consumer/score/lines_score.cuh).
template <Kernel C>
struct AddedLinesSmem {
  LinesOfRow rows[C.shape.block_m];
  float references[kAddedReferences][C.shape.block_m];
  KeySpan meet[C.shape.block_m / kRowsPerWarp];  // where the two lines of some row of a warp do
};
}  // namespace fa3::hopper
