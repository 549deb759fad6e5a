// SPDX-License-Identifier: Apache-2.0
// From a plan to parameters and grids. See launch.h; the main kernel begins in
// backward_kernel.cuh.
#include "engine/ampere/launch/launch.h"

#include "engine/ampere/backward_params.h"
#include "engine/ampere/plan/copy_width.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/kernels/kernels.h"
#include "engine/cuda/softmax/constants.h"

namespace fa3::ampere {
namespace {

using cuda::array_at;
using cuda::BackwardCall;
using cuda::row_tensor;
using cuda::TensorSpan;

// The workspace's arrays; null where the plan has none.
struct Arrays {
  Arrays(const BackwardPlan& plan, void* workspace) {
    const BackwardWorkspace& w = plan.workspace;
    rows = {{.lse_log2 = array_at<float>(workspace, w.lse_log2),
             .delta = array_at<float>(workspace, w.delta),
             .dq_accum = array_at<float>(workspace, w.dq_accum),
             .dq_semaphore = array_at<int>(workspace, w.dq_semaphore),
             .numbers = {int(plan.scratch_blocks), int(plan.call.q.heads)}},
            plan.call.lengths_q.in_one_tensor};
    sink_sums = array_at<float>(workspace, w.sink_sums);
    d_o = cuda::behind_gate(plan.call, array_at<uint16_t>(workspace, w.d_a));
  }

  ScratchRows rows;
  float* sink_sums;
  TensorSpan d_o;  // the main kernel's
};

// Whether all rows begin at multiples of 16 bytes, and end there.
bool has_whole_vectors(const TensorSpan& t) {
  return copy_width(t) == kWidestCopy && t.columns * t.element_bytes % kWidestCopy == 0;
}

CopiedRows copied(const TensorSpan& t) {
  return {row_tensor(t), copy_width(t), has_whole_vectors(t)};
}
StoredRows stored(const TensorSpan& t) {
  return {row_tensor(t), has_whole_vectors(t)};
}

RowGrid grid_of(const BackwardCall& a, const Lengths& lengths, int64_t heads, int64_t blocks) {
  return {lengths, int(a.sequences), int(heads), int(blocks)};
}

PreprocessParams preprocess_params(const BackwardPlan& plan, const Arrays& arrays) {
  const BackwardCall& a = plan.call;
  return {.o = row_tensor(a.o),
          .d_o = row_tensor(a.d_o),
          .lse = a.lse,
          .d_lse = a.d_lse,
          .rows = arrays.rows,
          .grid = grid_of(a, a.lengths_q, a.q.heads, plan.preprocess_blocks),
          .block_m = plan.kernel.config.block_m,
          .head_dim = plan.kernel.config.head_dim,
          .sink = a.sink,
          .sink_sums = arrays.sink_sums,
          .whole_vectors = has_whole_vectors(a.o) && has_whole_vectors(a.d_o)};
}

BackwardParams main_params(const BackwardPlan& plan, const Arrays& arrays) {
  const BackwardCall& a = plan.call;
  BackwardParams p{.q = copied(a.q),
                   .k = copied(a.k),
                   .v = copied(a.v),
                   .d_o = copied(arrays.d_o),
                   .dk = stored(a.dk),
                   .dv = stored(a.dv),
                   .rows = arrays.rows,
                   .grid = grid_of(a, a.lengths_k, a.k.heads, plan.key_blocks),
                   .lengths_q = a.lengths_q,
                   .mask = a.mask,
                   .heads_per_kv_head = int(a.heads_per_kv_head()),
                   .scale = a.gradient_scale,
                   .scale_of_one_key = a.gradient_scale_of_one_key,
                   .scale_log2 = cuda::log2_scale(a.scale),
                   .last_keys_first = a.deterministic,
                   .capped = a.softcap != 0,
                   .soft_cap = {},
                   .per_cap = 0,
                   .dropout = cuda::DropoutParams::of(a.dropout),
                   .block_mask = a.block_mask};
  if (p.capped) {
    p.soft_cap = cuda::SoftCap::of(a.scale, a.softcap);
    p.per_cap = 1 / p.soft_cap.cap;
  }
  return p;
}

PostprocessParams postprocess_params(const BackwardPlan& plan, const Arrays& arrays) {
  const BackwardCall& a = plan.call;
  return {.dq = stored(a.dq),
          .rows = arrays.rows,
          .grid = grid_of(a, a.lengths_q, a.q.heads, plan.query_blocks),
          .lengths_k = a.lengths_k,
          .scale = a.gradient_scale,
          .scale_of_one_key = a.gradient_scale_of_one_key};
}

// Sequences may leave out query blocks, and a key block would wait for ever for a counter that
// nobody has cleared.
cudaError_t clear_semaphores(const BackwardPlan& plan, const Arrays& arrays, cudaStream_t stream) {
  if (!arrays.rows.scratch.dq_semaphore) return cudaSuccess;
  const int64_t counters = plan.scratch_blocks * plan.call.q.heads * plan.scratch_batches * kSides;
  return cudaMemsetAsync(arrays.rows.scratch.dq_semaphore, 0, size_t(counters) * sizeof(int),
                         stream);
}

}  // namespace

cudaError_t launch_backward(const BackwardPlan& plan, void* workspace, cudaStream_t stream,
                            int launches, const cuda::ScoreGradientParams* score) {
  const BackwardCall& a = plan.call;
  const BackwardKernel& kernel = plan.kernel;
  const Arrays arrays(plan, workspace);
  cudaError_t error = cudaSuccess;
  if (launches & kPreprocess) {
    error = clear_semaphores(plan, arrays, stream);
    GatedPreprocessParams p{preprocess_params(plan, arrays), {}};
    if (a.has_gate()) p.gate = GateRows::of(a.gate, a.d_gate, row_tensor(arrays.d_o));
    if (error == cudaSuccess) {
      error = cuda::launch(a.has_gate() ? kernel.gated_preprocess : kernel.preprocess,
                           unsigned(plan.grids.preprocess), kPreprocessThreads, 0, &p, {}, stream);
    }
  }
  if (error == cudaSuccess && launches & kMain) {
    ScoredBackwardParams p{.main = main_params(plan, arrays), .score = {}};
    if (score != nullptr) p.score = *score;
    error = cuda::launch(kernel.main, unsigned(plan.grids.main), kBackwardThreads,
                         kernel.smem_bytes, &p, {}, stream);
  }
  if (error == cudaSuccess && launches & kPostprocess) {
    PostprocessParams p = postprocess_params(plan, arrays);
    error = cuda::launch(kernel.postprocess, unsigned(plan.grids.postprocess), kBackwardThreads, 0,
                         &p, {}, stream);
    if (error == cudaSuccess && a.d_sink) {
      const int64_t blocks = plan.grids.preprocess > 0 ? plan.preprocess_blocks : 0;
      error = cuda::sum_sink_gradients(
          {arrays.sink_sums, int(a.sequences), int(a.q.heads), int(blocks), a.d_sink}, stream);
    }
  }
  return error;
}

}  // namespace fa3::ampere
