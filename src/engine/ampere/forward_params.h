// SPDX-License-Identifier: Apache-2.0
// What one forward launch is given, by value, as a __grid_constant__. Filled by
// launch/launch_forward.cpp.
#pragma once

#include "core/mask/block_mask.h"
#include "core/mask/mask_rule.h"
#include "core/scales.h"
#include "engine/ampere/tile_schedule.h"
#include "engine/cuda/feature_params.h"
#include "engine/cuda/softmax/outputs.h"
#include "engine/cuda/softmax/score_captures.h"
#include "engine/cuda/softmax/soft_cap.h"
#include "engine/cuda/tile/divisor.h"
#include "engine/cuda/tile/rows.h"

namespace fa3::ampere {

// Keys in pages: the batch entries of K and V.
struct PagedKeys {
  const int32_t* table;
  int64_t table_stride;
  cuda::Divisor page_size;  // 0: no pages
  int num_pages;
};

struct ForwardParams {
  cuda::CopiedRows q, k, v;
  PagedKeys pages;
  TileSchedule schedule;
  cuda::Divisor packs_per_kv_head;
  MaskRuleOf<int> mask;
  // From products to exponents of two; capped scores: 1. With a score function to what it is given.
  float scale_log2;
  bool capped;
  cuda::SoftCap soft_cap;
  cuda::DropoutParams dropout;
  cuda::ForwardOutput output;  // with splits: of partial results
  int partial_batches;         // batch entries of the partial results of a split
  CacheScales cache_scales;    // of kernels of quantized caches
  bool cache_is_e5m2;          // likewise; else e4m3
  bool output_is_plain;        // rows of whole 16 bytes, of the kernel's type
  BlockMask block_mask;        // of kernels that look at one
  cuda::OutputParams outputs;  // most kernels have none of these
#ifdef FA3_SCORE_FUNCTION      // ScoredForwardParams of the host
  cuda::ScoreCaptures captures;
#endif
};

// What a kernel with a score function is given: for such a kernel, compiled at run time, the
// captures are ForwardParams' own.
struct ScoredForwardParams {
  ForwardParams forward;
  cuda::ScoreCaptures captures;
};

}  // namespace fa3::ampere
