// SPDX-License-Identifier: Apache-2.0
// A backward call in the kernels' words: tensors, lengths and a mask in 32 bits. Pure functions.
#pragma once

#include "core/mask/mask_rule.h"
#include "core/problem.h"
#include "core/seqlen.h"
#include "engine/cuda/softmax/outputs.h"
#include "engine/cuda/tile/rows.h"
#include "engine/cuda/tile/tensor_span.h"

namespace fa3::cuda {

struct BackwardCall {
  TensorSpan q, k, v, o, d_o;  // packed sequences are one batch entry
  RowFloats lse;
  RowFloats d_lse;  // data may be null: zero
  TensorSpan dq, dk, dv;
  float scale = 0.0f;
  float gradient_scale = 0.0f;             // of dQ and dK
  float gradient_scale_of_one_key = 0.0f;  // instead, where a sequence has one key
  float softcap = 0.0f;                    // 0: none
  MaskRuleOf<int> mask;
  BlockMask block_mask;
  void* block_lists = nullptr;  // of the mask, made before; null: the call makes them
  Dropout dropout;
  bool deterministic = false;
  bool batch_invariant = false;
  bool has_sink = false;
  const float* sink = nullptr;  // one for each query head
  bool has_d_sink = false;
  float* d_sink = nullptr;  // null: not wanted
  int seqlen_q = 0;         // of the longest sequence
  int seqlen_k = 0;
  bool varlen = false;  // lengths differ; the device reads them, from these:
  int64_t sequences = 0;
  Lengths lengths_q;
  Lengths lengths_k;
  bool has_score_function = false;
  bool accumulate_dq = false, accumulate_dkv = false;  // to what these hold
  GateParams gate{};
  RowTensor d_gate{};  // of its type; data null: not wanted

  bool has_gate() const { return gate.kind != Gate::kNone; }
  bool is_causal() const { return mask.right == 0; }
  bool has_no_keys() const { return k.rows == 0 || k.batches == 0; }
  bool has_no_queries() const { return q.rows == 0 || q.batches == 0; }
  // Without rows there may still be sinks; their gradient is zero then.
  bool has_nothing_to_do() const {
    return q.heads == 0 || (has_no_queries() && has_no_keys() && !has_d_sink);
  }
  int64_t heads_per_kv_head() const { return k.heads > 0 ? q.heads / k.heads : q.heads; }
};

BackwardCall call_of(const BackwardProblem& problem);

// What the main kernel takes for dO: behind a gate a tensor without gaps in `memory`.
TensorSpan behind_gate(const BackwardCall& call, void* memory);

}  // namespace fa3::cuda
