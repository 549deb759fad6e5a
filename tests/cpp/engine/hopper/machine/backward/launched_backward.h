// SPDX-License-Identifier: Apache-2.0
//
// The backward's kernels, planned and launched as in the library over tensors that are addresses
// alone: what the main kernel is given, and how many CTAs. Next: backward_work.h.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "engine/hopper/backward/backward_kernel.cuh"
#include "engine/hopper/launch/launch_backward.h"
#include "launch/host_runtime.h"
#include "launch/random_map.h"
#include "launch/shape.h"

namespace fa3::hopper {

// The launch of a call whose key blocks stay whole, but for the query heads of causal groups; or of
// one whose key blocks may be split by steps.
enum class MainLaunch { kWhole, kMaySplit };

template <BackwardConfig C>
class LaunchedBackward {
 public:
  static constexpr int kPlannedSms = C.persistent() ? 2 : 132;

  explicit LaunchedBackward(const CallShape& s, bool deterministic = false,
                            MainLaunch main = MainLaunch::kWhole, int sms = kPlannedSms)
      : shape(s) {
    BackwardCall a;
    a.q = dense_span(&q_, s.entries(), s.q_rows(), s.heads, C.shape.head_dim);
    a.k = dense_span(&k_, s.entries(), s.k_rows(), s.kv_heads, C.shape.head_dim);
    a.v = dense_span(&v_, s.entries(), s.k_rows(), s.kv_heads, C.shape.head_dim_v);
    a.o = a.d_o = dense_span(&d_o_, s.entries(), s.q_rows(), s.heads, C.shape.head_dim_v);
    a.dq = dense_span(&dq_, s.entries(), s.q_rows(), s.heads, C.shape.head_dim);
    a.dk = dense_span(&dk_, s.entries(), s.k_rows(), s.kv_heads, C.shape.head_dim);
    a.dv = dense_span(&dv_, s.entries(), s.k_rows(), s.kv_heads, C.shape.head_dim_v);
    a.scale = a.gradient_scale = 1;
    a.deterministic = deterministic;
    a.batch_invariant = main == MainLaunch::kWhole;
    s.describe(a);
    if (C.block_mask()) a.block_mask = mask = map_.make(s, 1);
    BackwardKernel kernel{.config = C,
                          .preprocess = &pre_,
                          .main = &main_,
                          .postprocess = &post_,
                          .smem_bytes = backward_smem_bytes<C>(),
                          .main_deterministic = &main_};
    if constexpr (C.can_split_steps()) {
      kernel.splits = {C.with_step_splits(), &main_splits_, kernel.smem_bytes, &post_, &post_};
    }
    const BackwardPlan plan = plan_launches(kernel, a, sms);
    machine::on_launch = [&](const void* function, dim3 grid, const void* given, bool) {
      if (function != plan.main) return;
      tiles = int(grid.x);
      params = *static_cast<const BackwardParamsOf<C>*>(given);
    };
    workspace_.resize(size_t(plan.workspace.bytes));
    EXPECT_EQ(launch_backward(plan, workspace_.data(), nullptr), cudaSuccess);
    machine::on_launch = {};

    q = a.q.data, k = a.k.data, v = a.v.data, d_o = a.d_o.data;
    dk = a.dk.data, dv = a.dv.data;
  }

  LaunchedBackward(const LaunchedBackward&) = delete;

  // Whether additions to dQ have one. Persistent CTAs draw tiles from the first counter.
  bool has_order() const { return params.scratch.dq_semaphore && !C.persistent(); }

  CallShape shape;
  BackwardParamsOf<C> params{};
  BlockMask mask;
  int tiles = 0;
  // These stand for tensors.
  const void *q, *k, *v, *d_o, *dk, *dv;

 private:
  char q_ = 0, k_ = 0, v_ = 0, d_o_ = 0, dq_ = 0;
  alignas(float) char dk_ = 0;
  alignas(float) char dv_ = 0;
  char pre_ = 0, main_ = 0, main_splits_ = 0, post_ = 0;  // and these for kernels
  std::vector<char> workspace_;
  RandomMap map_;
};

}  // namespace fa3::hopper
