// SPDX-License-Identifier: Apache-2.0
// A shared library with many forward configurations, for hopper_sweep.py to time beside torch.
#include <cstdio>

#include "forward_kernels.cuh"
#include "sweep_configs.h"

namespace {

const auto& kernels() {
  static const auto all = fa3::testing::forward_kernels<fa3::testing::kSweepConfigs>();
  return all;
}

}  // namespace

extern "C" {

int sweep_count() {
  return int(kernels().size());
}

// Element (0 fp16, 1 bf16), d, dv, block_m, block_n, q_slots, kv_slots, ping_pong.
void sweep_config(int i, int* out) {
  const auto& c = kernels()[i].config;
  const int values[] = {int(c.element), c.head_dim, c.head_dim_v, c.block_m,
                        c.block_n,      c.q_slots,  c.kv_slots,   c.ping_pong};
  for (int j = 0; j < 8; ++j) out[j] = values[j];
}

// Contiguous (b, s, h, d) tensors; the workspace is as large as anyone needs.
int sweep_forward(int i, void* q, void* k, void* v, void* o, float* lse, void* workspace, int b,
                  int hq, int hk, int sq, int sk, int d, int dv, int causal, float scale,
                  void* stream) {
  fa3::hopper::ForwardArguments a;
  const auto span = [](void* data, int64_t b, int64_t s, int64_t h, int64_t d) {
    return fa3::hopper::TensorSpan{data, b, s, h, d, s * h * d, h * d, d};
  };
  a.q = span(q, b, sq, hq, d);
  a.k = span(k, b, sk, hk, d);
  a.v = span(v, b, sk, hk, dv);
  a.o = span(o, b, sq, hq, dv);
  a.lse = lse;
  a.lse_batch_stride = int64_t{hq} * sq;
  a.lse_head_stride = sq;
  a.seqlen_k = sk;
  a.heads_per_kv_head = hq / hk;
  a.scale = scale;
  a.causal = causal != 0;
  a.workspace = workspace;
  return fa3::hopper::launch_forward(kernels()[i], a, static_cast<cudaStream_t>(stream));
}
}
