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

cuda::TileOrderOf<Divisor> tile_order(const ForwardConfig& c, const ForwardCall& call,
                                      const TileSchedule& s, int num_sms) {
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

// Keys of a tile, in blocks, as far as the lengths' bounds and the mask tell.
int64_t most_key_blocks(const ForwardConfig& c, const ForwardCall& call) {
  const KeyRangeOf<int> first = call.mask.keys_of(0, call.seqlen_q, call.seqlen_k);
  const KeyRangeOf<int> last =
      call.mask.keys_of(std::max(call.seqlen_q - 1, 0), call.seqlen_q, call.seqlen_k);
  const int64_t keys = std::min<int64_t>(call.seqlen_k, last.end - first.begin);
  return call.varlen ? ceil_div(call.seqlen_k, c.block_n)
                     : ceil_div(std::max<int64_t>(keys, 0), c.block_n);
}

// In how many parts the key blocks of each tile are visited. Time is counted in blocks of a full
// wave of CTAs, which memory limits: two or three CTAs on an SM use all that it gets, so a last
// wave of few takes less for a block. A CTA begins with the time of one block, merging with that of
// six, and a CTA's partial results are written and read at the speed of keys and values.
int64_t choose_num_splits(const ForwardConfig& c, int64_t tiles, int64_t blocks, int64_t rows,
                          int64_t num_sms) {
  constexpr int64_t kMostSplits = 128, kLeastBlocks = 4;
  constexpr double kStart = 1, kMerge = 6, kBusyCtas = 2.4;
  const double partial = 2.0 * double(rows) * c.head_dim_v * sizeof(float) / c.stage_bytes();
  const auto time = [&](int64_t splits) {
    const int64_t ctas = tiles * splits, waves = ctas / (num_sms * c.ctas_per_sm);
    const int64_t last = ceil_div(ctas - waves * num_sms * c.ctas_per_sm, num_sms);
    const double share = std::min(std::max(double(last), kBusyCtas) / c.ctas_per_sm, 1.0);
    const double start = kStart + (splits > 1 ? partial : 0);
    const auto of_cta = double(ceil_div(blocks, splits));
    return double(waves) * (of_cta + start) + (last > 0 ? share * of_cta + start : 0) +
           (splits > 1 ? kMerge : 0);
  };
  int64_t best = 1;
  for (int64_t splits = 2; splits <= std::min(kMostSplits, blocks / kLeastBlocks); ++splits) {
    if (time(splits) < time(best)) best = splits;
  }
  return best;
}

}  // namespace

ForwardPlan plan_launch(const ForwardKernel& kernel, const ForwardCall& call, PackGqa pack,
                        int num_sms, int num_splits) {
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
  const int64_t blocks = most_key_blocks(c, call);
  const int64_t rows = std::min<int64_t>(pack.rows(int64_t{call.seqlen_q}), c.block_m);
  const int64_t wanted = num_splits > 0
                             ? std::min<int64_t>(num_splits, blocks)
                             : choose_num_splits(c, plan.num_tiles, blocks, rows, num_sms);
  plan.schedule.num_splits = int(std::max<int64_t>(wanted, 1));
  plan.partials = {.batches = call.q.batches,
                   .rows = call.q.rows,
                   .heads = call.q.heads,
                   .pitch = ceil_div(call.head_dim_v, int64_t{4}) * 4,
                   .num_splits = plan.schedule.num_splits};
  plan.q_width = copy_width(call.q);
  plan.k_width = copy_width(call.k);
  plan.v_width = copy_width(call.v);
  plan.o_width = copy_width(call.o);
  return plan;
}

}  // namespace fa3::ampere
