// SPDX-License-Identifier: Apache-2.0
// The parameters of the backward's kernels, by value. launch_backward.cpp fills them in.
#pragma once

#include "core/mask/block_mask.h"
#include "core/seqlen.h"
#include "engine/cuda/backward/gate_rows.h"
#include "engine/cuda/backward/query_scratch.h"
#include "engine/cuda/feature_params.h"
#include "engine/cuda/softmax/score_captures.h"
#include "engine/cuda/softmax/soft_cap.h"
#include "engine/cuda/tile/divisor.h"
#include "engine/cuda/tile/rows.h"

namespace fa3::ampere {

using namespace cuda;  // what every CUDA engine shares

// A tensor that threads store; `whole_vectors`: all its rows begin at multiples of 16 bytes and end
// there.
struct StoredRows {
  RowTensor tensor;
  bool whole_vectors;
};

inline constexpr int kPreprocessThreads = 256;
inline constexpr int kPreprocessRows = 64;  // of a CTA

// Blocks of rows of a grid: each head of each sequence has `blocks`, as many as the longest needs.
// Behind the sequences, the rows of a packed tensor that none owns.
struct RowGrid {
  Lengths lengths;
  int sequences;
  Divisor heads;
  Divisor blocks;
};

// The three kernels agree on where a sequence's query blocks lie.
struct ScratchRows {
  QueryScratch scratch;
  bool packed;  // queries in one tensor
};

struct PreprocessParams {
  RowTensor o;
  RowTensor d_o;
  RowFloats lse;
  RowFloats d_lse;  // data may be null: zero
  ScratchRows rows;
  RowGrid grid;        // of kPreprocessRows
  int block_m;         // of the scratch
  int head_dim;        // of dQ's sums
  const float* sink;   // one for each query head; null: none
  float* sink_sums;    // for each CTA: the sinks' P times Delta
  bool whole_vectors;  // rows of O and dO are multiples of 16 bytes, and begin at such
};

struct GatedPreprocessParams : PreprocessParams {
  GateRows gate;
};

struct BackwardParams {
  CopiedRows q, k, v, d_o;
  StoredRows dk, dv;
  ScratchRows rows;
  RowGrid grid;  // of keys; heads of K and V
  Lengths lengths_q;
  MaskRuleOf<int> mask;
  int heads_per_kv_head;
  float scale;
  float scale_of_one_key;  // instead, where a sequence has one
  float scale_log2;        // scale * log2(e)
  bool last_keys_first;    // deterministic calls: the order in which key blocks add to dQ

  // Kernels with P's other form.
  bool capped;
  SoftCap soft_cap;
  float per_cap;  // 1 / soft_cap.cap
  DropoutParams dropout;

  BlockMask block_mask;    // of kernels that look at one
#ifdef FA3_SCORE_FUNCTION  // ScoredBackwardParams of the host
  ScoreGradientParams score;
#endif
};

// What a kernel with a score function is given: for such a kernel, compiled at run time, the rest
// is a part of BackwardParams.
struct ScoredBackwardParams {
  BackwardParams main;
  ScoreGradientParams score;
};

struct PostprocessParams {
  StoredRows dq;
  ScratchRows rows;
  RowGrid grid;
  Lengths lengths_k;
  float scale;
  float scale_of_one_key;
};

}  // namespace fa3::ampere
