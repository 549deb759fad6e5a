// SPDX-License-Identifier: Apache-2.0
// The parameters of the backward's kernels, by value. launch_backward.cpp fills them in.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/seqlen.h"
#include "engine/cuda/backward/gate_rows.h"
#include "engine/cuda/backward/query_scratch.h"
#include "engine/cuda/feature_params.h"
#include "engine/cuda/lists/block_list.h"
#include "engine/cuda/softmax/score_captures.h"
#include "engine/cuda/softmax/soft_cap.h"
#include "engine/cuda/tile/rows.h"
#include "engine/hopper/config/sm90.h"
#include "engine/hopper/scheduler/key_block_order.h"
#include "engine/hopper/scheduler/sequence_tiles.h"

namespace fa3::hopper {

// By key block: blocks of accum_layout.h, to which the CTAs of its splits add. The sums of all key
// blocks for the first two splits come first, `blocks` of them, then those for the next two.
struct DkvAccum {
  float* dk = nullptr;
  float* dv = nullptr;
  BlockNumbers numbers;
  int64_t blocks = 0;
};

// The varlen metadata of queries or of keys: the list of their tiles (scheduler/sequence_tiles.h).
struct VarlenTiles {
  const SequenceTiles* sequences = nullptr;  // null: all sequences have one length
  const int* num_entries = nullptr;
};

// What preprocess reads of a query row.
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

  // General kernels.
  VarlenTiles varlen;
  bool packed;
};

struct PreprocessParams {
  RowOperands rows;
  QueryScratch scratch;
  RowTiles tiles;

  // General kernels.
  const float* sink;  // one for each query head; null: none
  float* sink_sums;   // for each query block: the sink's P times Delta
};

struct GatedPreprocessParams : PreprocessParams {
  GateRows gate;
};

// Kernels with a score function.
struct ScoreGradientOperands : cuda::ScoreGradientParams {
  CUtensorMap captured_map;  // of the tensor whose tiles the kernel loads, if it does
  CUtensorMap gradient_map;  // and of its gradient, if the kernel stores that
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

  // General kernels. Their maps above are clipped; these are for boxes outside of their tensors
  // (tensor_map.h).
  CUtensorMap q_outside;
  CUtensorMap d_o_outside;
  CUtensorMap k_outside;
  CUtensorMap v_outside;
  int columns;  // of Q and K
  int columns_v;
  VarlenTiles varlen;
  bool q_is_packed;
  MaskRuleOf<int> mask;
  float scale_of_one_key;  // instead of scale, where a sequence has one
  cuda::SoftCap soft_cap;
  float per_cap;  // 1 / soft_cap.cap

  // Kernels that split the steps of a key block.
  DkvAccum dkv_accum;
  cuda::DropoutParams dropout;
  cuda::BlockLists lists;  // of query blocks, by key block
#ifdef FA3_SCORE_FUNCTION  // ScoredBackwardParams of the host
  alignas(CUtensorMap) ScoreGradientOperands score;
#endif
};

// What a kernel with a score function is given: for such a kernel, compiled at run time, the rest
// is a part of BackwardParams.
struct ScoredBackwardParams {
  BackwardParams main;
  alignas(CUtensorMap) ScoreGradientOperands score;
};

// Kernels with gradients in float32: where those of keys go.
struct WideBackwardParams : BackwardParams {
  RowTensor dk;
  RowTensor dv;
  bool adds;  // to what is there
};

struct PostprocessParams {
  RowTensor gradient;
  const float* accum;
  int sums;            // of a block, which are added up
  int64_t sum_blocks;  // from a block's sum to its next, in blocks
  RowTiles tiles;
  float scale;

  // General kernels.
  float scale_of_one_key;

  // Kernels with gradients in float32: they are added to what is there.
  bool adds = false;
};

// The kernel for short sequences has no scratch and no list of tiles: it reads the lengths itself.
// Its maps of Q and dO have heads packed where `pack` has several.
struct ShortSequencesParams {
  BackwardParams main;
  PackGqa pack;
  RowOperands rows;
  RowTensor dq;
  RowTensor dk;
  RowTensor dv;
  Lengths lengths_q;
  Lengths lengths_k;
  int sequences;
};

}  // namespace fa3::hopper
