// SPDX-License-Identifier: Apache-2.0
// What the three kernels of a backward are given, by value. Filled by launch_backward.cpp.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/seqlen.h"
#include "engine/cuda/rows.h"
#include "engine/cuda/soft_cap.h"
#include "engine/hopper/backward/query_steps.h"
#include "engine/hopper/config/sm90.h"
#include "engine/hopper/scheduler/sequence_tiles.h"

namespace fa3::hopper {

// Blocks of rows of all heads and batch entries, by number.
struct BlockNumbers {
  int of_head;
  int heads;

  FA3_HD constexpr int64_t block(int batch, int head, int block) const {
    return (int64_t{batch} * heads + head) * of_head + block;
  }
  FA3_HD constexpr int64_t block(const ScratchPlace& place, int head, int block) const {
    return this->block(place.batch, head, place.first_block + block);
  }
};

// By query block: what preprocess leaves for the main kernel, and that for postprocess. Rows are
// padded to whole blocks.
struct QueryScratch {
  float* lse_log2;    // log-sum-exp in log2 units; padding +inf, so that its weights are zero
  float* delta;       // rowsum(dO * O) - dLSE; padding 0
  float* dq_sum;      // chunks of sum_parts.h
  int* dq_semaphore;  // how many key blocks have added to a chunk; null: they add in any order
  BlockNumbers numbers;
};

// By key block: chunks of sum_parts.h, added up by the CTAs of its shares.
struct KeySums {
  float* dk = nullptr;
  float* dv = nullptr;
  BlockNumbers numbers;
};

// Blocks of varlen sequences, of queries or of keys, as the device lists them.
struct BlockList {
  const SequenceTiles* sequences = nullptr;  // null: all sequences are as long
  const int* num_entries = nullptr;
};

// Of what a query row needs before its scores can be differentiated.
struct RowOperands {
  RowTensor o;
  RowTensor d_o;
  RowFloats lse;
  RowFloats d_lse;  // data may be null: zero
};

// The blocks of rows that preprocess and postprocess go through.
struct RowTiles {
  BlockNumbers blocks;
  int seqlen;

  // Of kernels that are compiled for it.
  BlockList list;
  bool packed;
};

struct PreprocessParams {
  RowOperands rows;
  QueryScratch scratch;
  RowTiles tiles;

  // Of kernels that are compiled for it.
  const float* sink;  // one for each query head; null: none
  float* sink_sums;   // of each query block: the sink's weights times Delta
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

  // Of kernels that are compiled for it. The maps above are clipped then; these are for boxes
  // outside of their tensors (tensor_map.h).
  CUtensorMap q_outside;
  CUtensorMap d_o_outside;
  CUtensorMap k_outside;
  CUtensorMap v_outside;
  int columns;  // of Q and K
  int columns_v;
  BlockList list;
  bool q_is_packed;
  MaskRuleOf<int> mask;
  float scale_of_one_key;  // instead of scale, where a sequence has one
  cuda::SoftCap soft_cap;
  float per_cap;  // 1 / soft_cap.cap

  // Of kernels that split key blocks into shares.
  KeySums key_sums;
};

struct PostprocessParams {
  RowTensor gradient;
  const float* sums;
  RowTiles tiles;
  float scale;

  // Of kernels that are compiled for it.
  float scale_of_one_key;
};

// Of the kernel for short sequences, which has no scratch and no list: it reads the lengths itself.
struct ShortSequencesParams {
  BackwardParams main;
  RowOperands rows;
  RowTensor dq;
  RowTensor dk;
  RowTensor dv;
  Lengths lengths_q;
  Lengths lengths_k;
  int sequences;
};

}  // namespace fa3::hopper
