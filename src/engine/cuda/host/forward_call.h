// SPDX-License-Identifier: Apache-2.0
// A forward call in the kernels' words: tensors, lengths and a mask in 32 bits. Pure functions,
// some of which both passes need. Next: backward_call.h.
#pragma once

#include "core/error.h"
#include "core/problem.h"
#include "core/scales.h"
#include "engine/cuda/softmax/outputs.h"
#include "engine/cuda/tile/rows.h"
#include "engine/cuda/tile/tensor_span.h"

namespace fa3::cuda {

constexpr int64_t kMaxRows = int64_t{1} << 30;  // row and key numbers are 32-bit in the kernels
constexpr int64_t kMaxTiles = int64_t{1} << 30;
constexpr int64_t kMaxColumnsV = 256;  // of a launch: wider values take several

struct ForwardCall {
  TensorSpan q;  // packed sequences are one batch entry
  TensorSpan k;
  TensorSpan v;  // v and o: the columns of the first launch
  TensorSpan o;
  int64_t head_dim_v = 0;  // the columns of all launches
  bool has_keys = true;    // else k and v are some of q, which stands in for them
  RowFloats lse;
  const float* sink = nullptr;  // null: none
  float scale = 0.0f;
  float softcap = 0.0f;  // 0: none
  MaskRuleOf<int> mask;
  BlockMask block_mask;
  void* block_lists = nullptr;  // of the mask, made before; null: the call makes them
  Dropout dropout;
  int seqlen_q = 0;  // of the longest sequence
  int seqlen_k = 0;
  bool varlen = false;  // lengths differ; the device reads them, from these:
  int64_t sequences = 0;
  Lengths lengths_q;
  Lengths lengths_k;
  KeyPlaces places;  // of the keys; paged: k's and v's batch entries are pages
  int heads_per_kv_head = 1;
  CacheScales cache_scales{};
  bool cache_is_e5m2 = false;  // a quantized cache; else e4m3
  bool has_score_function = false;
  PartialInput before{};  // a result that the call goes on from
  GateParams gate{};      // of the first launch's columns, as v and o
  bool finds_max_logit = false;
  MaxLogitParams max_logit{};

  // Without a window, every query sees at least half of the keys: tiles take about equally long.
  bool tiles_are_alike() const { return mask.hides_nothing() || seqlen_k >= int64_t{2} * seqlen_q; }
  // The last query sees all keys, and each one before it a key less.
  bool is_causal() const {
    return mask.right == 0 && mask.left == mask.kUnbounded && mask.chunk == mask.kNoChunks &&
           !block_mask.on && seqlen_k >= seqlen_q;
  }
  Outputs outputs() const { return {gate.kind, gate.type, finds_max_logit}; }
  bool has_no_queries() const { return q.batches == 0 || q.heads == 0 || q.rows == 0; }
  bool some_rows_see_no_key() const {
    return varlen || has_score_function || block_mask.on || mask.is_beside_diagonal() ||
           mask.keys_of(0, seqlen_q, seqlen_k).empty();
  }
};

// A window that reaches over the longest sequence hides nothing.
MaskRuleOf<int> narrow_mask(const Problem& problem);
const char* mask_name(const MaskRuleOf<int>& mask);

Element element_of(DType dtype);

// Sequences have lengths of their own, or keys in places of their own.
bool is_varlen(const Problem& problem);

TensorSpan span_of(const Operand& operand, int64_t batches, int64_t rows, int64_t heads,
                   int64_t columns);

// Refuses what the kernels cannot number.
Status check_row_numbers(const Problem& problem);

// Refuses a quantized cache whose scales are not one for each sequence and head.
Status check_cache_scales(const Problem& problem);

// The gate of a launch with this many columns.
GateParams gate_of(const Problem& problem, int64_t columns);

ForwardCall call_of(const Problem& problem);

}  // namespace fa3::cuda
