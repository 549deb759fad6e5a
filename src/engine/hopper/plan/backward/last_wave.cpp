// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/backward/last_wave.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "core/workspace.h"
#include "engine/cuda/backward/query_steps.h"

namespace fa3::hopper {
namespace {

// In steps, as reckoned from a step's 2 us: what a CTA takes beside its steps, and what the launch,
// the clearing of sums and their postprocess cost the call.
constexpr int64_t kEndSteps = 3, kLaunchSteps = 8;

constexpr int64_t kMostSplits = 64;

int64_t num_clusters(const BackwardPlan& plan) {
  return capped_product(plan.k_blocks.in_all, plan.call.k.heads);
}

// The same key blocks in clusters of the kernel that splits their steps, and how many run at once.
int64_t clusters_of_splits(const BackwardPlan& plan, int64_t clusters) {
  const int64_t keys = clusters * plan.kernel.config.keys_of_cluster();
  return ceil_div(keys, plan.kernel.splits.config.keys_of_cluster());
}
int64_t splits_at_once(const BackwardPlan& plan, int num_sms) {
  return num_sms / plan.kernel.splits.config.ctas();
}

// The number of splits, from 2 on, that takes least by time(splits), if that is less than `whole`;
// else 1.
template <class Time>
int best_splits(int64_t steps, int64_t whole, const Time& time) {
  int64_t best = 1, least = whole;
  for (int64_t splits = 2; splits <= std::min(steps, kMostSplits); ++splits) {
    const int64_t taken = kLaunchSteps + time(splits);
    if (taken < least) best = splits, least = taken;
  }
  return int(best);
}

// For a wave of clusters whose key blocks have equally many steps.
int splits_of_equal(const BackwardPlan& plan, int64_t clusters, int num_sms) {
  const int64_t steps = capped_product(plan.q_blocks.of_entry, plan.call.heads_per_kv_head());
  const int64_t parts = clusters_of_splits(plan, clusters);
  const int64_t at_once = splits_at_once(plan, num_sms);
  return best_splits(steps, steps + kEndSteps, [&](int64_t splits) {
    return ceil_div(parts * splits, at_once) * (ceil_div(steps, splits) + kEndSteps);
  });
}

// For causal key blocks: the time of the longest one, or of all, longest first, over the SMs.
int splits_of_causal(const BackwardPlan& plan, int num_sms) {
  const BackwardConfig& c = plan.kernel.config;
  const BackwardCall& a = plan.call;
  const BackwardExtents extents{a.seqlen_q, a.seqlen_k, true};
  const auto steps_of = [&](int64_t cluster) -> int64_t {
    const int keys = c.keys_of_cluster();
    return query_steps(extents, int(cluster) * keys, keys, c.block_m).per_head();
  };
  const int64_t longest = steps_of(0), shortest = steps_of(plan.k_blocks.of_entry - 1);
  const int64_t parts = clusters_of_splits(plan, num_clusters(plan));
  const int64_t at_once = splits_at_once(plan, num_sms);
  const auto time = [&](int64_t splits) {
    // A split's steps are rounded up, by half a step on average.
    const int64_t twice_all = parts * (longest + shortest + splits * (2 * kEndSteps + 1));
    return std::max(ceil_div(longest, splits) + kEndSteps, twice_all / (2 * at_once));
  };
  return best_splits(longest, time(1), time);
}

bool can_split(const BackwardPlan& plan) {
  const BackwardConfig& c = plan.kernel.config;
  const BackwardCall& a = plan.call;
  const bool has_kernel = !c.general() && !c.persistent && plan.kernel.splits.config.splits_steps;
  return has_kernel && !a.deterministic && !a.batch_invariant && !a.has_score_function;
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

int splits_of_few(const BackwardPlan& plan, int num_sms) {
  const int64_t clusters = num_clusters(plan), at_once = num_sms / plan.kernel.config.ctas();
  if (!can_split(plan) || clusters == 0 || splits_at_once(plan, num_sms) == 0) return 1;
  if (!plan.call.is_causal()) {
    return clusters <= at_once ? splits_of_equal(plan, clusters, num_sms) : 1;
  }
  const bool is_group = plan.call.heads_per_kv_head() > 1;
  return clusters <= 2 * at_once && !is_group ? splits_of_causal(plan, num_sms) : 1;
}

int64_t clusters_in_last_wave(const BackwardPlan& plan, int num_sms) {
  const int64_t clusters = num_clusters(plan), at_once = num_sms / plan.kernel.config.ctas();
  if (!can_split(plan) || plan.call.is_causal() || plan.step_splits() > 1) return 0;
  if (clusters <= at_once || clusters % std::max<int64_t>(at_once, 1) == 0) return 0;
  const int64_t last = clusters % at_once;
  return splits_of_equal(plan, last, num_sms) > 1 ? last : 0;
}

LastWave last_wave_of(const BackwardPlan& plan, int64_t clusters, int num_sms) {
  const KeyBlockOrder& order = plan.order;
  const int64_t heads = int64_t{order.num_kv_heads} * order.num_batches - order.last_section;
  if (clusters == 0 || heads > order.num_kv_heads) return {};
  const int64_t of_head = ceil_div(clusters, heads);
  const int splits = splits_of_equal(plan, of_head * heads, num_sms);
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
