// SPDX-License-Identifier: Apache-2.0
// What the C entries of benchmarks/contenders/library.py are given.
#pragma once

#include <fa3/fa3.h>

#include "engine/hopper/plan/forward_call.h"

#define FA3_RIVAL extern "C" __attribute__((visibility("default")))

// All tensors are (batch, row, head, column) without gaps.
struct RivalProblem {
  int64_t struct_size, batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, head_dim_v;
  int32_t dtype, causal;
  float scale;
  int32_t reserved;
  void *q, *k, *v, *o;
  float* lse;
  void* workspace;
};

namespace fa3::hopper {

inline ForwardCall call_of(const RivalProblem& p) {
  const auto span = [&p](void* data, int64_t rows, int64_t heads, int64_t columns) {
    return TensorSpan{
        data, p.batch, rows, heads, columns, rows * heads * columns, heads * columns, columns};
  };
  ForwardCall call;
  call.q = span(p.q, p.seqlen_q, p.heads_q, p.head_dim);
  call.k = span(p.k, p.seqlen_k, p.heads_k, p.head_dim);
  call.v = span(p.v, p.seqlen_k, p.heads_k, p.head_dim_v);
  call.o = span(p.o, p.seqlen_q, p.heads_q, p.head_dim_v);
  call.lse = {p.lse, {p.heads_q * p.seqlen_q, p.seqlen_q, 1}};
  call.scale = p.scale;
  if (p.causal) call.mask.right = 0;
  call.seqlen_k = int(p.seqlen_k);
  call.heads_per_kv_head = int(p.heads_q / p.heads_k);
  return call;
}

}  // namespace fa3::hopper
