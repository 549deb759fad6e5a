// SPDX-License-Identifier: Apache-2.0
// What follows from a kernel and a tiling. See forward_plan.h.
#include "engine/hopper/plan/forward_plan.h"

#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/select/select.h"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {
namespace {

int64_t partial_columns(const ForwardCall& call) {
  return ceil_div(call.o.columns, kCopyColumns) * kCopyColumns;
}

// Where a kernel combines itself: for each partial result a counter for each row, or for each CTA
// of a cluster, or a flag for each warp.
int64_t num_counters(const ForwardPlan& plan) {
  const Kernel& c = plan.kernel.config;
  const SplitKv& split = plan.tiling.split;
  if (plan.combine == Combine::kOpener) return int64_t{split.ctas} * c.consumer_warps();
  return split.ctas * (c.is_single_sequence() ? c.shape.block_m : int64_t{1} << split.cluster_log2);
}

ForwardWorkspace lay_out(const ForwardPlan& plan) {
  const Kernel& c = plan.kernel.config;
  const Scheduler scheduler = plan.tiling.scheduler;
  WorkspaceAllocator allocator;
  ForwardWorkspace w;
  if (plan.tiling.is_split()) {
    // The split that opens a tile may stay in registers.
    const int64_t partials = plan.combine == Combine::kOpener
                                 ? plan.tiling.split.ctas
                                 : num_partials(c, plan.call, plan.tiling);
    const int64_t columns = partial_columns(plan.call);
    w.partial_o = cuda::place<float>(allocator, partials, plan.partial_rows, columns);
    w.partial_sums = cuda::place<PartialSum>(allocator, partials, plan.partial_rows);
    if (plan.combine == Combine::kKernel) {
      w.combines = cuda::place<CombineTile>(allocator, plan.num_combines);
    } else {
      w.counters = cuda::place<uint64_t>(allocator, num_counters(plan));
    }
  } else if (scheduler == Scheduler::kVarlenMetadata) {
    w.tile_counter = cuda::place<int>(allocator, 1);
    w.sequences = cuda::place<SequenceTiles>(allocator, plan.order.num_m_blocks);
    w.num_entries = cuda::place<int>(allocator, 1);
  } else if (scheduler == Scheduler::kDynamicPersistent) {
    w.tile_counter = cuda::place<int>(allocator, 1);
  }
  if (c.block_mask() && plan.call.block_lists == nullptr) {
    w.lists = cuda::place_block_lists(plan.lists, cuda::ListsOf::kForward, plan.call.sequences,
                                      allocator);
  }
  w.bytes = allocator.bytes();
  return w;
}

KvPath kv_loader_of(const ForwardPlan& plan) {
  if (plan.cp_async.active) return KvPath::kCpAsync;
  return plan.call.places.paged() ? KvPath::kTmaPages : KvPath::kTma;
}

// A combine kernel follows, unless the kernel's last CTA of a tile combines, or the one that opens
// it.
Combine combine_of(const ForwardPlan& plan) {
  const Kernel& c = plan.kernel.config;
  if (!plan.tiling.is_split()) return Combine::kNone;
  if (c.combine() == CombineKind::kLastCta) return Combine::kLastCta;
  const bool opens = c.combine() == CombineKind::kOpener && plan.tiling.split.opener_combines;
  return opens ? Combine::kOpener : Combine::kKernel;
}

// CTAs: no more than there is room or work for.
dim3 grid_of(const ForwardPlan& plan, int num_sms) {
  const Kernel& c = plan.kernel.config;
  const Tiling& tiling = plan.tiling;
  const unsigned cluster = unsigned(plan.cluster);
  if (c.is_single_sequence()) {
    const unsigned tiles = unsigned(num_split_tiles(c, plan.call, tiling.pack));
    const unsigned packs = unsigned(plan.call.heads_per_kv_head / tiling.pack.heads());
    return {unsigned(tiling.split.ctas) * cluster / tiles, tiles / packs, packs};
  }
  if (tiling.scheduler == Scheduler::kStreamK) return {unsigned(tiling.split.ctas) * cluster, 1, 1};
  const int64_t tiles = tiling.finds_own_tiles() ? num_numbered_tiles(c, plan.call, tiling)
                                                 : num_tiles(c, plan.call, tiling.pack);
  const int64_t tasks = capped_product(tiles, tiling.split.num_splits);
  return {unsigned(std::min(int64_t{num_sms} * c.shape.ctas_per_sm, tasks)), 1, 1};
}

}  // namespace

ForwardPlan plan_launch(const ForwardKernel& kernel, const ForwardCall& call, const Tiling& tiling,
                        int num_sms, TilesTogether together) {
  const Kernel& c = kernel.config;
  ForwardPlan plan{.kernel = kernel, .call = call, .tiling = tiling, .together = together};
  plan.num_launches = std::max<int64_t>(1, ceil_div(call.head_dim_v, kMaxColumnsV));
  if (call.has_no_queries()) return plan;
  plan.cp_async = cp_async_keys(c, call);
  plan.kv_loader = kv_loader_of(plan);
  plan.kv_box_rows = kv_box_rows(c, call);
  plan.q_is_clipped = c.general() && call.lengths_q.in_one_tensor;
  // Programmatic dependent launch: a mask's lists are made just before.
  plan.pdl = c.can_split() || (c.block_mask() && call.block_lists == nullptr);
  plan.cluster = 1 << tiling.split.cluster_log2;
  plan.order = tile_order(c, call, tiling.pack, num_sms, together);
  if (tiling.finds_own_tiles()) {
    plan.schedule = split_kv_schedule(c, call, tiling);
    plan.pair_blocks = pair_blocks(c, call, tiling);
  } else if (tiling.scheduler == Scheduler::kVarlenMetadata) {
    plan.schedule.sequences = varlen_metadata(c, call, tiling.pack, num_sms);
  }
  if (tiling.is_split()) {
    plan.num_combines = int(num_combines(c, call, tiling));
    plan.most_splits = most_splits(c, call, tiling);
    const int64_t rows = tiling.pack.rows(int64_t{std::max(1, call.seqlen_q)});
    plan.partial_rows = int(std::min<int64_t>(c.shape.block_m, rows));
    plan.combine = combine_of(plan);
  }
  if (c.block_mask()) {  // lists have the rule in them: the kernel knows of none
    const cuda::TileCapacity capacity{.queries = plan.order.num_m_blocks};
    plan.lists = cuda::block_list_params(call.block_mask, call.mask, call.seqlen_q, call.seqlen_k,
                                         call.varlen ? &capacity : nullptr);
    if (call.block_lists != nullptr) {
      set_own_memory(plan.lists, cuda::ListsOf::kForward, call.block_lists);
    }
    plan.call.mask = {};
  }
  plan.grid = grid_of(plan, num_sms);
  if (c.is_single_sequence()) {
    plan.tile_parts_log2 = std::countr_zero(plan.grid.x / unsigned(plan.cluster));
  }
  plan.workspace = lay_out(plan);
  return plan;
}

}  // namespace fa3::hopper
