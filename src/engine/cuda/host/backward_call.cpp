// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/host/backward_call.h"

#include "engine/cuda/feature_params.h"
#include "engine/cuda/host/forward_call.h"

namespace fa3::cuda {

BackwardCall call_of(const BackwardProblem& p) {
  const auto span = [&](const Operand& t, const Lengths& lengths, int64_t heads, int64_t columns) {
    return lengths.in_one_tensor ? span_of(t, 1, lengths.total, heads, columns)
                                 : span_of(t, p.batch, lengths.max, heads, columns);
  };
  const auto queries = [&](const Operand& t, int64_t columns) {
    return span(t, p.lengths_q, p.heads_q, columns);
  };
  const auto keys = [&](const Operand& t, int64_t columns) {
    return span(t, p.lengths_k, p.heads_k, columns);
  };
  const auto floats = [](const RowScalars& r) {
    return RowFloats{r.data, {r.batch_stride, r.head_stride, r.row_stride}};
  };
  // Kernels without a score function compute 1 - dropout_p times dS.
  const float kept_scale = p.score != nullptr ? 1.0f : DropoutParams::of(p.dropout).scale;
  return {.q = queries(p.q, p.head_dim),
          .k = keys(p.k, p.head_dim),
          .v = keys(p.v, p.head_dim_v),
          .o = queries(p.o, p.head_dim_v),
          .d_o = queries(p.d_o, p.head_dim_v),
          .lse = floats(p.lse),
          .d_lse = p.has_d_lse ? floats(p.d_lse) : RowFloats{},
          .dq = queries(p.dq, p.head_dim),
          .dk = keys(p.dk, p.head_dim),
          .dv = keys(p.dv, p.head_dim_v),
          .scale = p.scale,
          .gradient_scale = p.gradient_scale(p.lengths_k.max) * kept_scale,
          .gradient_scale_of_one_key = p.gradient_scale(1) * kept_scale,
          .softcap = p.softcap,
          .mask = narrow_mask(p),
          .block_mask = p.block_mask,
          .block_lists = p.block_lists,
          .dropout = p.dropout,
          .deterministic = p.deterministic,
          .batch_invariant = p.batch_invariant,
          .has_sink = p.has_sink,
          .sink = p.sink,
          .has_d_sink = p.has_dsink,
          .d_sink = p.dsink,
          .seqlen_q = int(p.lengths_q.max),
          .seqlen_k = int(p.lengths_k.max),
          .varlen = is_varlen(p),
          .sequences = p.batch,
          .lengths_q = p.lengths_q,
          .lengths_k = p.lengths_k,
          .has_score_function = p.score != nullptr,
          .accumulate_dq = p.accumulate_dq,
          .accumulate_dkv = p.accumulate_dkv,
          .gate = gate_of(p, p.head_dim_v),
          .d_gate = {p.d_gate.data,
                     {p.d_gate.batch_stride, p.d_gate.head_stride, p.d_gate.row_stride},
                     p.gate.per_row ? 1 : int(p.head_dim_v)}};
}

TensorSpan behind_gate(const BackwardCall& call, void* memory) {
  TensorSpan d_a = call.d_o;
  if (!call.has_gate()) return d_a;
  d_a.data = memory;
  d_a.head_stride = d_a.columns;
  d_a.row_stride = d_a.heads * d_a.columns;
  d_a.batch_stride = d_a.rows * d_a.row_stride;
  return d_a;
}

}  // namespace fa3::cuda
