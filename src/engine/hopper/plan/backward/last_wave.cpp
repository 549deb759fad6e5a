// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/backward/last_wave.h"

#include <algorithm>
#include <limits>

#include "core/ceil_div.h"
#include "core/workspace.h"

namespace fa3::hopper {
namespace {

// In steps, as reckoned from a step's 2 us: what a CTA takes beside its steps, and what the launch,
// the clearing of sums and their postprocess cost the call.
constexpr int64_t kEndSteps = 3, kLaunchSteps = 8;

// The best number of splits for the steps of some clusters' key blocks; 1: a wave of their own
// takes no longer, or hardly.
int choose_splits(const BackwardPlan& plan, int64_t clusters, int num_sms) {
  const BackwardConfig& whole = plan.kernel.config;
  const BackwardConfig& split = plan.kernel.splits.config;
  const int64_t steps = capped_product(plan.q_blocks.of_entry, plan.call.heads_per_kv_head());
  const int64_t parts = ceil_div(clusters * whole.keys_of_cluster(), split.keys_of_cluster());
  const int64_t at_once = num_sms / split.ctas();
  const int64_t most = std::min<int64_t>(steps, std::numeric_limits<unsigned char>::max());
  int64_t best = 1, least = steps + kEndSteps;
  for (int64_t splits = 2; splits <= most; ++splits) {
    const int64_t waves = ceil_div(parts * splits, at_once);
    const int64_t time = kLaunchSteps + waves * (ceil_div(steps, splits) + kEndSteps);
    if (time < least) best = splits, least = time;
  }
  return int(best);
}

bool has_equal_key_blocks(const BackwardPlan& plan) {
  const BackwardCall& a = plan.call;
  const bool is_plain = !plan.kernel.config.general() && !plan.kernel.config.persistent &&
                        plan.kernel.splits.config.splits_steps;
  return is_plain && !a.is_causal() && !a.deterministic && !a.batch_invariant &&
         !a.has_score_function && plan.step_splits() == 1;
}

// A part of a tensor: rows from one on, and heads.
TensorSpan part_of(TensorSpan t, int64_t first_row, int64_t first_head, int64_t heads) {
  const int64_t offset =
      (t.batches - 1) * t.batch_stride + first_row * t.row_stride + first_head * t.head_stride;
  t.data = static_cast<std::byte*>(t.data) + offset * t.element_bytes;
  t.batches = 1;
  t.rows -= first_row;
  t.heads = heads;
  return t;
}

}  // namespace

int64_t clusters_in_last_wave(const BackwardPlan& plan, int num_sms) {
  if (!has_equal_key_blocks(plan)) return 0;
  const int64_t at_once = num_sms / plan.kernel.config.ctas();
  const int64_t clusters = capped_product(plan.k_blocks.in_all, plan.call.k.heads);
  if (at_once == 0 || clusters <= at_once || clusters % at_once == 0) return 0;
  const int64_t last = clusters % at_once;
  return choose_splits(plan, last, num_sms) > 1 ? last : 0;
}

LastWave last_wave_of(const BackwardPlan& plan, int64_t clusters, int num_sms) {
  const KeyBlockOrder& order = plan.order;
  const int64_t heads = int64_t{order.num_kv_heads} * order.num_batches - order.last_section;
  if (clusters == 0 || heads > order.num_kv_heads) return {};
  const int64_t of_head = ceil_div(clusters, heads);
  const int splits = choose_splits(plan, of_head * heads, num_sms);
  if (of_head > order.num_n_blocks || splits == 1) return {};
  return {heads, (order.num_n_blocks - of_head) * plan.kernel.config.keys_of_cluster(), splits};
}

BackwardPlan plan_of_last_wave(const BackwardPlan& plan) {
  const LastWave& wave = plan.last_wave;
  const StepSplitKernels& kernels = plan.kernel.splits;
  const BackwardConfig& c = kernels.config;
  BackwardPlan last = plan;
  last.kernel.config = last.main_config = c;
  last.kernel.smem_bytes = kernels.smem_bytes;
  last.main = kernels.main;

  BackwardCall& a = last.call;
  const int64_t group = a.heads_per_kv_head(), head = a.k.heads - wave.heads;
  // Queries' arrays in the workspace go by batch entry, head and block.
  const int64_t entry_blocks = a.q.heads * plan.q_blocks.of_entry;
  const int64_t first_block =
      (a.q.batches - 1) * entry_blocks + head * group * plan.q_blocks.of_entry;
  for (TensorSpan* t : {&a.k, &a.v, &a.dk, &a.dv}) {
    *t = part_of(*t, wave.first_key, head, wave.heads);
  }
  for (TensorSpan* t : {&a.q, &a.d_o}) *t = part_of(*t, 0, head * group, wave.heads * group);
  a.seqlen_k -= int(wave.first_key);

  BackwardWorkspace& w = last.workspace;
  w.dq_accum += first_block * c.dq_accum().block_floats() * int64_t{sizeof(float)};
  for (int64_t* rows : {&w.lse_log2, &w.delta}) {
    *rows += first_block * c.block_m * int64_t{sizeof(float)};
  }
  const int64_t of_head = ceil_div(a.k.rows, c.keys_of_cluster());
  last.k_blocks = {of_head, of_head};
  // Splits of all key blocks, one after the other: those of one time read the same queries.
  last.order = {.num_n_blocks = int(of_head),
                .num_kv_heads = int(wave.heads),
                .num_batches = 1,
                .section_heads = 1,
                .last_section = int(wave.heads * wave.splits - 1),
                .last_keys_first = false,
                .step_splits = static_cast<unsigned char>(wave.splits)};
  last.last_wave = {};
  last.num_tiles = int64_t{last.order.num_tiles()} * c.ctas();
  last.grids = {.main = last.num_tiles,
                .postprocess_dk = of_head * wave.heads * c.dk_accum().parts(),
                .postprocess_dv = of_head * wave.heads * c.dv_accum().parts()};
  return last;
}

}  // namespace fa3::hopper
