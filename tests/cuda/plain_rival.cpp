// SPDX-License-Identifier: Apache-2.0
// The plain kernel behind the C entry of benchmarks/contenders/library.py, to be timed beside the
// library's.
#include <fa3/fa3.h>

#include "cuda/plain_launch.h"

namespace {

// As library.py has it. All tensors are (batch, row, head, column) without gaps.
struct RivalProblem {
  int64_t struct_size, batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, head_dim_v;
  int32_t dtype, causal;
  float scale;
  int32_t reserved;
  void *q, *k, *v, *o;
  float* lse;
  void* workspace;
};

fa3::hopper::TensorSpan span(void* data, int64_t batches, int64_t rows, int64_t heads,
                             int64_t columns) {
  return {data, batches, rows, heads, columns, rows * heads * columns, heads * columns, columns};
}

}  // namespace

#define FA3_RIVAL extern "C" __attribute__((visibility("default")))

FA3_RIVAL const char* rival_name() {
  return "plain";
}

FA3_RIVAL int64_t rival_workspace(const RivalProblem*) {
  return 0;
}

FA3_RIVAL int rival_forward(const RivalProblem* p, void* stream) {
  using namespace fa3::hopper;
  if (p->dtype != FA3_FLOAT16 && p->dtype != FA3_BFLOAT16) return 1;
  ForwardCall launch;
  launch.q = span(p->q, p->batch, p->seqlen_q, p->heads_q, p->head_dim);
  launch.k = span(p->k, p->batch, p->seqlen_k, p->heads_k, p->head_dim);
  launch.v = span(p->v, p->batch, p->seqlen_k, p->heads_k, p->head_dim_v);
  launch.o = span(p->o, p->batch, p->seqlen_q, p->heads_q, p->head_dim_v);
  launch.lse = {p->lse, {p->heads_q * p->seqlen_q, p->seqlen_q, 1}};
  launch.scale = p->scale;
  if (p->causal) launch.mask.right = 0;
  launch.seqlen_k = int(p->seqlen_k);
  launch.heads_per_kv_head = int(p->heads_q / p->heads_k);
  const Element element = p->dtype == FA3_BFLOAT16 ? Element::kBf16 : Element::kFp16;
  return launch_plain(int(p->head_dim), element, launch, static_cast<cudaStream_t>(stream));
}
