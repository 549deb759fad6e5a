// SPDX-License-Identifier: Apache-2.0
// What follows from a kernel and a call. See backward_plan.h.
#include "engine/ampere/plan/backward_plan.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "engine/ampere/backward_params.h"

namespace fa3::ampere {
namespace {

BackwardWorkspace lay_out(const BackwardPlan& plan) {
  const BackwardConfig& c = plan.kernel.config;
  const cuda::BackwardCall& a = plan.call;
  const int64_t blocks = capped_product(plan.scratch_blocks, a.q.heads, plan.scratch_batches);
  WorkspaceAllocator allocator;
  BackwardWorkspace w;
  w.dq_accum = cuda::place<float>(allocator, blocks, c.dq().block_floats());
  w.lse_log2 = cuda::place<float>(allocator, blocks, c.block_m);
  w.delta = cuda::place<float>(allocator, blocks, c.block_m);
  if (a.deterministic) w.dq_semaphore = cuda::place<int>(allocator, blocks, kSides);
  if (a.has_sink) w.sink_sums = cuda::place<float>(allocator, plan.grids.preprocess);
  if (a.has_gate()) {
    w.d_a = cuda::place<uint16_t>(allocator, a.d_o.batches, a.d_o.rows, a.q.heads, a.d_o.columns);
  }
  w.bytes = allocator.bytes();
  return w;
}

}  // namespace

BackwardPlan plan_launches(const BackwardKernel& kernel, const cuda::BackwardCall& call) {
  const BackwardConfig& c = kernel.config;
  BackwardPlan plan{.kernel = kernel, .call = call};
  if (call.has_nothing_to_do()) return plan;
  const auto blocks = [](int64_t rows, int block) {  // of no rows one: it clears what nobody owns
    return std::max<int64_t>(ceil_div(rows, block), 1);
  };
  plan.key_blocks = blocks(call.seqlen_k, c.block_n);
  plan.query_blocks = blocks(call.seqlen_q, c.block_m);
  plan.preprocess_blocks = blocks(plan.query_blocks * c.block_m, kPreprocessRows);
  const bool packed = call.lengths_q.in_one_tensor;
  // Each packed sequence, and the rows that none owns, ends within a block.
  plan.scratch_blocks =
      packed ? ceil_div(call.q.rows, c.block_m) + call.sequences + 1 : plan.query_blocks;
  plan.scratch_batches = packed ? 1 : call.sequences;
  const auto owners = [&](const Lengths& lengths) {
    return call.sequences + (lengths.in_one_tensor ? 1 : 0);
  };
  if (!call.has_no_queries()) {
    // A gate has gradients where no sequence has rows.
    const int64_t sequences = call.has_gate() ? owners(call.lengths_q) : call.sequences;
    plan.grids.preprocess = capped_product(sequences, call.q.heads, plan.preprocess_blocks);
    plan.grids.postprocess =
        capped_product(owners(call.lengths_q), call.q.heads, plan.query_blocks);
  }
  if (!call.has_no_keys()) {
    plan.grids.main = capped_product(owners(call.lengths_k), call.k.heads, plan.key_blocks);
  }
  plan.workspace = lay_out(plan);
  return plan;
}

}  // namespace fa3::ampere
