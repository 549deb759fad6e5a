// SPDX-License-Identifier: Apache-2.0
// What follows from a kernel and a call. See forward_plan.h.
#include "engine/ampere/plan/forward_plan.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "core/workspace.h"
#include "engine/ampere/plan/copy_width.h"

namespace fa3::ampere {
namespace {

// A tail of this many waves of tiles goes longest first, whatever the head.
constexpr int64_t kTailWaves = 2;

TileOrder tile_order(const ForwardConfig& c, const ForwardCall& call, const TileSchedule& s,
                     int num_sms) {
  const int64_t heads = s.num_packs * call.q.batches;
  const int64_t tail_tiles = call.mask.hides_nothing() ? 0 : kTailWaves * num_sms * c.ctas_per_sm;
  const int64_t tail = ceil_div(tail_tiles, s.most_m_blocks);
  return {s.most_m_blocks, s.num_packs, int(call.q.batches), int(std::min(heads, tail))};
}

int64_t num_tiles(const ForwardConfig& c, const ForwardCall& call, const TileSchedule& s) {
  const bool packed = call.lengths_q.in_one_tensor;
  const int64_t unowned = packed ? ceil_div(s.pack.rows(call.q.rows), c.block_m) : 0;
  return capped_product(capped_product(call.sequences, s.most_m_blocks) + unowned, s.num_packs);
}

}  // namespace

ForwardPlan plan_launch(const ForwardKernel& kernel, const ForwardCall& call, PackGqa pack,
                        int num_sms) {
  const ForwardConfig& c = kernel.config;
  ForwardPlan plan{.kernel = kernel, .call = call};
  plan.num_launches = std::max<int64_t>(1, ceil_div(call.head_dim_v, cuda::kMaxColumnsV));
  if (call.has_no_queries()) return plan;
  const int64_t m_blocks = ceil_div(pack.rows(int64_t{call.seqlen_q}), c.block_m);
  plan.schedule = {.lengths_q = call.lengths_q,
                   .lengths_k = call.lengths_k,
                   .places = call.places,
                   .batch = int(call.sequences),
                   .block_m = c.block_m,
                   .pack = pack,
                   .num_packs = int(call.q.heads / pack.heads()),
                   .order = {},
                   .by_sequence = call.varlen,
                   .most_m_blocks = int(std::max<int64_t>(1, m_blocks))};
  plan.schedule.order = tile_order(c, call, plan.schedule, num_sms);
  plan.num_tiles = num_tiles(c, call, plan.schedule);
  plan.q_width = copy_width(call.q);
  plan.k_width = copy_width(call.k);
  plan.v_width = copy_width(call.v);
  plan.o_width = copy_width(call.o);
  return plan;
}

}  // namespace fa3::ampere
