// SPDX-License-Identifier: Apache-2.0
// Problems for tests of plans to change: with nothing special, and steps of decoding.
#pragma once

#include "core/problem.h"
#include "engine/hopper/plan/select/select.h"

namespace fa3::hopper {

inline Problem plain() {
  Problem p;
  p.batch = 2;
  p.heads_q = p.heads_k = 4;
  p.head_dim = p.head_dim_v = 128;
  p.dtype = p.o.dtype = DType::bfloat16;
  p.lengths_q.max = p.lengths_k.max = 1000;
  p.device = FA3_CUDA;
  return p;
}
inline Problem plain(int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys,
                     int64_t dim = 128) {
  Problem p = plain();
  p.batch = batch;
  p.heads_q = heads;
  p.heads_k = kv_heads;
  p.head_dim = p.head_dim_v = dim;
  p.lengths_q.max = queries;
  p.lengths_k.max = keys;
  return p;
}

// A step of decoding: 64 query heads, 8 key heads, causal.
inline Problem decoding(int64_t batch, int64_t keys) {
  Problem p = plain(batch, 64, 8, 1, keys);
  p.mask.right = 0;
  return p;
}
// Sequences whose lengths only the device knows.
inline Problem several_tokens(int64_t batch, int64_t queries, int64_t keys, int64_t dim) {
  Problem p = decoding(batch, keys);
  p.head_dim = p.head_dim_v = dim;
  p.lengths_q.max = queries;
  p.lengths_k.varlen = true;
  return p;
}

constexpr int kSms = 132;  // an H200's

// Without kernels of few query rows.
inline Choice chosen_for(const Problem& problem) {
  return select_tiles(request_of(problem, kSms));
}
inline const Kernel& chosen_kernel(const Problem& problem) {
  return chosen_for(problem).row->kernel;
}

}  // namespace fa3::hopper
