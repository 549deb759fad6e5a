// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/plan/plan.h"

#include <algorithm>

#include "core/error.h"
#include "core/macros.h"
#include "engine/ampere/engine.h"
#include "engine/ampere/plan/copy_width.h"
#include "engine/ampere/plan/forward_plan.h"
#include "engine/cuda/host/device.h"

namespace fa3::ampere {
namespace {

std::string reasons(const ForwardPlan& plan, const char* why_the_row, bool batch_invariant) {
  const ForwardConfig& c = plan.kernel.config;
  std::string why =
      concat("kernel for head dims up to ", c.head_dim, " and ", c.head_dim_v, ": ", why_the_row);
  const int narrowest = std::min({plan.q_width, plan.k_width, plan.v_width});
  if (plan.has_work() && narrowest < kWidestCopy) {
    why += concat("; rows are copied by ", narrowest, " bytes: addresses or strides are no ",
                  "multiples of ", kWidestCopy);
  }
  if (const int heads = plan.schedule.pack.heads(); heads > 1) {
    why += concat("; PackGQA: ", heads, " query heads share a tile");
  }
  if (const int splits = plan.schedule.num_splits; splits > 1) {
    why += concat("; split-KV: ", splits, " CTAs share the keys of a tile");
  }
  if (c.outputs.any()) why += "; compiled at run time";
  if (batch_invariant) why += "; batch-invariant";
  if (plan.num_launches > 1) {
    why += concat("; V in ", plan.num_launches, " launches of ", cuda::kMaxColumnsV, " columns");
  }
  return why;
}

}  // namespace

Status check_forward(const Problem& p) {
  if (p.dtype != DType::float16 && p.dtype != DType::bfloat16) {
    return unsupported(name_of(p.dtype), " is not among its element types (float16, bfloat16)");
  }
  if (p.score != nullptr && p.dropout.on()) {
    return unsupported("no kernel for dropout beside a score function");
  }
  if (p.score != nullptr && p.gate.on) {
    return unsupported("no kernel for a score function beside an output gate");
  }
  FA3_TRY(cuda::check_cache_scales(p));
  if (!select_kernel(p, 0)) {
    return unsupported("no kernel for head dim ", p.head_dim, "; the largest have 256");
  }
  return cuda::check_row_numbers(p);
}

Status plan_forward(const Problem& problem, Plan* plan) {
  FA3_TRY(check_forward(problem));
  FA3_TRY(cuda::check_device(problem.device_index, kCapability));
  int num_sms = 0;
  FA3_TRY(cuda::count_free_sms(problem, &num_sms));
  const ForwardCall call = cuda::call_of(problem);
  int smem_bytes = 0;
  FA3_TRY(cuda::count_smem_bytes(problem.device_index, &smem_bytes));
  const Row& row = *select_kernel(problem, smem_bytes + kOwnSmemBytes);
  ForwardKernel kernel = forward_kernel_at(row, cuda::element_of(problem.dtype));
  if (problem.score != nullptr) kernel.config = kernel.config.with_score_function();
  const PackGqa pack = select_pack(problem, kernel.config);
  // Which split a key is in must not go by the other sequences.
  const bool splits = !problem.batch_invariant || problem.num_splits > 0;
  ForwardPlan decided = plan_launch(kernel, call, pack, num_sms, splits ? problem.num_splits : 1);
  ForwardConfig& c = decided.kernel.config;
  c.outputs = call.outputs();
  if (decided.partials.any()) c.outputs = {.max_logit = c.outputs.max_logit};  // merging gates
  if (decided.num_ctas() > cuda::kMaxTiles || pack.rows(call.q.rows) > cuda::kMaxRows) {
    return unsupported("more than 2^30 query tiles, or rows of queries times heads that share one");
  }
  plan->engine = "ampere";
  plan->decided.store(decided);
  plan->block_q = c.block_m;
  plan->block_k = c.block_n;
  plan->packed_heads = pack.heads();
  plan->num_splits = decided.schedule.num_splits;
  plan->num_tasks = decided.num_ctas();
  plan->workspace_bytes = decided.partials.bytes();
  if (plan->wants_words) {
    plan->kernel =
        concat("forward ", name_of(problem.dtype), " d", c.head_dim, "/", c.head_dim_v, " ",
               c.block_m, "x", c.block_n, c.quantized ? " quantized cache" : "",
               cuda::mask_name(call.mask), c.block_mask ? " block mask" : "",
               c.dropout ? " dropout" : "", problem.score ? " with a score function" : "",
               problem.gate.on ? " gate" : "", problem.max_logit.on ? " max logit" : "");
    plan->why = reasons(decided, row.why, problem.batch_invariant);
  }
  return {};
}

}  // namespace fa3::ampere
