// SPDX-License-Identifier: Apache-2.0
// What the three kernels of a backward are given, by value. Filled by launch_backward.cpp.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "engine/cuda/rows.h"
#include "engine/hopper/backward/query_steps.h"
#include "engine/hopper/forward_config.h"

namespace fa3::hopper {

// By query block: what preprocess leaves for the main kernel, and that for postprocess. Rows are
// padded to whole blocks.
struct QueryScratch {
  float* lse_log2;  // log-sum-exp in log2 units; padding +inf, so that its weights are zero
  float* delta;     // rowsum(dO * O) - dLSE; padding 0
  float* dq_sum;    // chunks of dq_parts.h
  int* turns;       // how many key blocks have added to a chunk; null: they add in any order
  int q_blocks;     // of a head
  int heads;

  FA3_HD constexpr int64_t block(int batch, int head, int m_block) const {
    return (int64_t{batch} * heads + head) * q_blocks + m_block;
  }
};

struct PreprocessParams {
  RowTensor o;
  RowTensor d_o;
  RowFloats lse;
  RowFloats d_lse;  // data may be null: zero
  QueryScratch scratch;
  int seqlen_q;
};

struct BackwardParams {
  // 5-D maps, dimensions {column, 1, row, head, batch}.
  CUtensorMap q_map;
  CUtensorMap d_o_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  CUtensorMap dk_map;
  CUtensorMap dv_map;
  QueryScratch scratch;
  KeyBlockOrder order;
  BackwardExtents extents;
  uint32_t zero;
  int heads_per_kv_head;
  float scale;
  float scale_log2;  // scale * log2(e)
};

struct PostprocessParams {
  RowTensor dq;
  QueryScratch scratch;
  int seqlen_q;
  float scale;
};

}  // namespace fa3::hopper
