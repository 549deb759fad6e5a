// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select/choose_split.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {
namespace {

// More whole tiles than these even out by themselves.
constexpr int64_t kMostTilesEach = 2;
// Microseconds until the next tile of a range has its Q, and the last one's rows are stored.
constexpr double kNextTileTime = 1;

// Equal ranges over the pairs of one row of KV blocks, of 2^groups_log2.
struct PairRanges {
  const SplitCase& s;
  int groups_log2;
  int64_t tiles, ctas, kv_blocks;  // of a row
  int64_t pair_blocks;

  PairedTiles of(int64_t ranges, int64_t range_blocks, int64_t partials, int tiles_each) const {
    const Tiling tiling{
        s.pack,
        Scheduler::kStreamK,
        {.ctas = int(ranges << groups_log2), .in_pairs = true, .groups_log2 = groups_log2}};
    const double keys_time = double(range_blocks) * s.block_time();
    return {tiling,
            keys_time + (tiles_each - 1) * kNextTileTime + s.combine_time(partials << groups_log2)};
  }

  // As many ranges for each pair. The longer tile always has a split more than the shorter one.
  PairedTiles whole_pairs() const {
    const int64_t most = 2 * ctas / tiles;
    if (most < 2) return {};
    const int64_t blocks = ceil_div(pair_blocks, most), ranges = ceil_div(pair_blocks, blocks);
    if (ranges * tiles % 2 != 0) return {};
    const int64_t all = ranges * tiles / 2;
    return of(all, blocks, ranges > 2 ? all + tiles / 2 : all, 2);
  }

  // A range for each CTA, most of which begin and end within tiles.
  PairedTiles all_ctas() const {
    const int64_t blocks = ceil_div(kv_blocks, ctas), ranges = ceil_div(kv_blocks, blocks);
    return of(ranges, blocks, ranges + std::min(tiles, ranges), 3);
  }
};

}  // namespace

PairedTiles choose_pairs(const SplitCase& s) {
  const bool are_unequal = s.c.consumers() > 1 && s.call.is_causal() && !s.call.varlen;
  const bool are_few = s.tiles > 0 && s.tiles <= kMostTilesEach * s.most_ctas;
  if (!are_unequal || !are_few || most_m_blocks(s.c, s.call, s.pack) < 2) return {};
  if (!fits_columns(s.c, s.call)) return {};
  const int log2 = choose_groups_log2(s);
  // Without a number of ranges: pairs have the blocks that they need.
  const Tiling tiling{s.pack, Scheduler::kStreamK, {.in_pairs = true, .groups_log2 = log2}};
  const PairedKvSchedule schedule{split_kv_schedule(s.c, s.call, tiling),
                                  pair_blocks(s.c, s.call, tiling)};
  const int64_t kv_blocks = s.call.sequences * schedule.length_of(schedule.sequence(0));
  const PairRanges ranges{
      s, log2, s.tiles >> log2, s.most_ctas >> log2, kv_blocks, schedule.pair_blocks};
  const PairedTiles whole = ranges.whole_pairs(), all = ranges.all_ctas();
  return whole.tiling.is_split() && whole.time <= all.time ? whole : all;
}

}  // namespace fa3::hopper
