// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/backward/backward_plan.h"

#include <algorithm>

#include "core/ceil_div.h"
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

// How many clusters of the kernel that splits steps hold the key blocks of `clusters` others.
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

// For a wave of clusters, at most, whose key blocks have equally many steps.
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
    return query_steps(extents, int(cluster) * keys, keys, c.shape.block_m).per_head();
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
  const bool has_kernel =
      !c.general() && !c.persistent() && plan.kernel.splits.config.splits_steps();
  return has_kernel && !a.deterministic && !a.batch_invariant && !a.has_score_function;
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

}  // namespace fa3::hopper
