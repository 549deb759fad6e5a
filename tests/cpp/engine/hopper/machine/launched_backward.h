// SPDX-License-Identifier: Apache-2.0
//
// The backward's kernels, planned and launched as in the library over tensors that are addresses
// alone: what the main kernel is given, and how many CTAs. Next: backward_work.h.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "engine/hopper/backward/backward_kernel.cuh"
#include "engine/hopper/launch/launch_backward.h"
#include "host_runtime.h"
#include "random_map.h"
#include "shape.h"

namespace fa3::hopper {

template <BackwardConfig C>
class LaunchedBackward {
 public:
  static constexpr int kPlannedSms = C.persistent ? 2 : 132;

  explicit LaunchedBackward(const Shape& s, bool deterministic = false) : shape(s) {
    BackwardCall a;
    a.q = span(&q, s.q_rows(), s.heads, C.head_dim);
    a.k = span(&k, s.k_rows(), s.kv_heads, C.head_dim);
    a.v = span(&v, s.k_rows(), s.kv_heads, C.head_dim_v);
    a.o = a.d_o = span(&d_o, s.q_rows(), s.heads, C.head_dim_v);
    a.dq = span(&dq, s.q_rows(), s.heads, C.head_dim);
    a.dk = span(&dk, s.k_rows(), s.kv_heads, C.head_dim);
    a.dv = span(&dv, s.k_rows(), s.kv_heads, C.head_dim_v);
    a.scale = a.gradient_scale = 1;
    a.deterministic = deterministic;
    a.mask = s.mask;
    a.seqlen_q = s.seqlen_q;
    a.seqlen_k = s.seqlen_k;
    a.varlen = s.varlen();
    a.sequences = s.batches;
    a.lengths_q = s.lengths_q();
    a.lengths_k = s.lengths_k();
    if (C.block_mask) a.block_mask = mask = map_.make(s, 1);
    machine::on_launch = [this](const void* function, dim3 grid, const void* given, bool) {
      if (function != &main_ && function != &main_head_splits_) return;
      tiles = int(grid.x);
      params = *static_cast<const BackwardParamsOf<C>*>(given);
    };
    const BackwardKernel kernel{
        C,      &pre_, &main_, &post_, backward_smem_bytes<C>(), &main_, &main_head_splits_,
        &post_, &post_};
    const BackwardPlan plan = plan_launches(kernel, a, kPlannedSms);
    workspace_.resize(size_t(plan.workspace.bytes));
    EXPECT_EQ(launch_backward(plan, workspace_.data(), nullptr), cudaSuccess);
  }

  LaunchedBackward(const LaunchedBackward&) = delete;

  // Whether additions to dQ have one. Persistent CTAs draw tiles from the first counter.
  bool has_order() const { return params.scratch.dq_semaphore && !C.persistent; }

  const Shape shape;
  BackwardParamsOf<C> params{};
  BlockMask mask;
  int tiles = 0;
  // These stand for tensors.
  const char q = 0, k = 0, v = 0, d_o = 0, dq = 0;
  alignas(float) const char dk = 0;
  alignas(float) const char dv = 0;

 private:
  TensorSpan span(const void* data, int rows, int heads, int columns) const {
    return {const_cast<void*>(data),         shape.entries(),          rows,   heads, columns,
            int64_t{rows} * heads * columns, int64_t{heads} * columns, columns};
  }

  char pre_ = 0, main_ = 0, main_head_splits_ = 0, post_ = 0;  // and these for kernels
  std::vector<char> workspace_;
  RandomMap map_;
};

}  // namespace fa3::hopper
