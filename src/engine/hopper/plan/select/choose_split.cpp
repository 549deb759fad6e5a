// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select/choose_split.h"

#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
#include "core/workspace.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {
namespace {

// Q comes 64 rows a copy, which must be whole queries of one pack. Tiles that are not split take up
// to a warp's rows.
constexpr int kMaxPackLog2 = 4;
constexpr int kMaxPackLog2OfSplitTiles = 6;

constexpr double kMetadataTime = 2.5;  // of the varlen metadata kernel, which split tiles spare
// The mean of unknown lengths is thought to be some half of the longest: so long, on average, do
// ranges take, if tiles may as well be alike.
constexpr double kMeanRange = 0.75;
constexpr int64_t kFewTilesEach = 4;
constexpr double kLeastGainOfPairs = 2;  // microseconds: of less the constants are not so sure
// The largest rows x splits that one CTA combines in the kernel; more if rows are few.
constexpr int64_t kMostRowsToCombine = 200, kFewRowsToCombine = 16, kMostFewRowsToCombine = 280;
// Fewer keys are never split.
constexpr int kLeastKeysToSplit = 512;
// Where ranges have at most this many KV blocks, one for each SM is enough.
constexpr int64_t kShortRange = 32;
constexpr int64_t kMaxPackedRows = int64_t{1} << 30;  // row numbers are 32-bit in the kernels

// Whether split tiles are done sooner than whole ones. Some SMs may have no whole tile, or one more
// than others; splits occupy all, but are combined.
bool split_pays(const SplitCase& s) {
  const double tile = s.tile_time();
  const bool needs_metadata = s.call.varlen && !s.starts_whole && s.tiles > s.most_ctas;
  const double whole =
      double(ceil_div(s.tiles, s.most_ctas)) * tile + (needs_metadata ? kMetadataTime : 0);
  const double splits = double(s.tiles) * tile / double(s.most_ctas);
  if (s.starts_whole && s.call.varlen) return kMeanRange * splits + s.combine_time() < whole;
  return splits + s.combine_time() < kWorthSplitting * whole;
}

// Where only the device knows the lengths, ranges are equal and tiles need not be: an SM may still
// be at the longest when all others are done. Few queries are always split for that. More queries
// take longer to combine: they are split where each SM has few tiles, no other tile of the sequence
// reads the same keys, and a tile takes longer than a combine. Where all tiles have a CTA at once,
// whole ones take as long as the longest, ranges as long as the mean, say half of that. What a
// kernel that decodes would take whole has been decided by split_pays().
bool split_evens_out(const SplitCase& s) {
  const auto& [c, call, pack, most_ctas, tiles, visible_keys, starts_whole] = s;
  if (!call.varlen || starts_whole || call.seqlen_k < kLeastKeysToSplit) return false;
  if (c.consumers() == 1) return true;
  const double share = tiles <= most_ctas ? 0.5 * double(tiles) / double(most_ctas) : 0;
  const double spared = s.tile_time() * (1 - share);
  return fits_columns(c, call) && most_m_blocks(c, call, pack) == 1 &&
         tiles <= kFewTilesEach * most_ctas && s.combine_time() < spared;
}

// A range for each CTA; where ranges are short, for each SM, which leaves fewer splits to combine.
// Rather a few ranges less than some that end within tiles, where tiles are alike.
int64_t ranges_of_group(int64_t tiles, int64_t kv_blocks, int64_t ctas, int64_t num_sms) {
  const bool are_short = kv_blocks <= kShortRange * num_sms;
  const int64_t most = std::min(are_short ? num_sms : ctas, kv_blocks);
  if (most < tiles) return most;
  const int64_t whole = most / tiles * tiles;
  return double(whole) >= kBusyRanges * double(most) ? whole : most;
}

// CTAs of a cluster share a range: they reduce their parts of a tile in shared memory, and fewer
// splits are combined. Clusters larger than pairs leave SMs without work.
int choose_cluster_log2(const Kernel& c, int64_t tiles, int64_t num_sms) {
  return c.is_decode() && 2 * tiles <= num_sms ? 1 : 0;
}

Tiling choose_fixed_split(const Kernel& c, const ForwardCall& call, PackGqa pack,
                          int64_t num_splits) {
  const int64_t tiles = num_tiles(c, call, pack), blocks = ceil_div(call.seqlen_k, c.shape.block_n);
  num_splits = std::min(num_splits, blocks);
  const bool is_countable = capped_product(tiles, blocks) < SplitKvSchedule::kMostConcatenated;
  if (num_splits <= 1 || !is_countable) return {};
  return {pack, Scheduler::kFixedSplit, {.num_splits = int(num_splits)}};
}

Tiling alike_ranges(const SplitCase& s, int num_sms) {
  const int64_t blocks = ceil_div(s.visible_keys, s.c.shape.block_n);
  const int log2 = choose_groups_log2(s);
  const int64_t tiles_of_group = s.tiles >> log2;
  const int cluster_log2 = choose_cluster_log2(s.c, s.tiles, num_sms);
  const int shared_log2 = log2 + cluster_log2;
  const int64_t ranges = ranges_of_group(tiles_of_group, tiles_of_group * blocks,
                                         s.most_ctas >> shared_log2, num_sms >> shared_log2);
  return {s.pack,
          Scheduler::kStreamK,
          {.ctas = int(ranges << log2), .groups_log2 = log2, .cluster_log2 = cluster_log2}};
}

// Until alike tiles in these ranges are combined.
double time_of_alike(const SplitCase& s, const Tiling& tiling) {
  const int64_t blocks = s.tiles * ceil_div(s.visible_keys, s.c.shape.block_n);
  return double(ceil_div(blocks, int64_t{tiling.split.ctas})) * s.block_time() + s.combine_time();
}

// Until whole tiles of a causal mask are done: the longest of them, which sees all keys, or as many
// as an SM has.
double time_of_whole(const SplitCase& s) {
  const double seen = 1 - 0.5 * double(s.call.seqlen_q) / double(s.call.seqlen_k);
  return std::max(1.0, seen * double(s.tiles) / double(s.most_ctas)) * s.tile_time();
}

Tiling split_by_stream_k(const Kernel& c, const ForwardCall& call, PackGqa pack, int num_sms) {
  const SplitCase s = split_case(c, call, pack, num_sms);
  const int64_t blocks = ceil_div(s.visible_keys, c.shape.block_n);
  const int64_t most = capped_product(num_tiles(c, call, pack), blocks);
  if (most >= SplitKvSchedule::kMostConcatenated || s.tiles == 0) return {};
  const bool by_alike = call.tiles_are_alike() && (split_pays(s) || split_evens_out(s));
  const Tiling alike = by_alike ? alike_ranges(s, num_sms) : Tiling{};
  const PairedTiles pairs = choose_pairs(s);
  if (!pairs.tiling.is_split()) return alike;
  const double other = by_alike ? time_of_alike(s, alike) : time_of_whole(s);
  const double worth = std::min(kWorthSplitting * other, other - kLeastGainOfPairs);
  return pairs.time < worth ? pairs.tiling : alike;
}

// Tiles that differ in length are drawn from a counter when a CTA is free; others, and those that
// all have an SM at once, need no counter to be cleared.
Scheduler choose_scheduler(const Kernel& c, const ForwardCall& call, PackGqa pack, int num_sms) {
  if (call.varlen) return Scheduler::kVarlenMetadata;
  const bool tiles_differ = call.block_mask.on || !call.mask.hides_nothing() ||
                            pack.rows(call.q.rows) % c.shape.block_m != 0;
  const bool one_wave = num_tiles(c, call, pack) <= int64_t{num_sms} * c.shape.ctas_per_sm;
  return tiles_differ && !one_wave ? Scheduler::kDynamicPersistent : Scheduler::kStaticPersistent;
}

}  // namespace

PackGqa most_packed(int64_t heads_per_kv_head, bool split) {
  const int most = split ? kMaxPackLog2OfSplitTiles : kMaxPackLog2;
  return {std::min(std::countr_zero(uint64_t(heads_per_kv_head)), most)};
}

// Packing pays where tiles would be partly empty, and where a causal mask splits through them:
// fewer queries a tile leave less beside the diagonal.
PackGqa choose_pack(const Kernel& c, const ForwardCall& call) {
  PackGqa most = most_packed(call.heads_per_kv_head);
  while (most.rows(call.q.rows) > kMaxPackedRows) --most.log2;
  const bool cut_by_mask = !call.mask.hides_nothing() && call.seqlen_q >= c.shape.block_m;
  const bool saves_tiles = num_tiles(c, call, most) < num_tiles(c, call, PackGqa{});
  return cut_by_mask || saves_tiles ? most : PackGqa{};
}

PackGqa choose_split_pack(const Kernel& c, const ForwardCall& call, int num_sms) {
  PackGqa pack = most_packed(call.heads_per_kv_head, true);
  const auto tiles = [&](PackGqa of) {
    return ceil_div(of.rows(call.seqlen_q), c.shape.block_m) * (call.q.heads / of.heads());
  };
  while (pack.log2 > 0 &&
         (pack.rows(call.q.rows) > kMaxPackedRows || tiles(pack) >= tiles({pack.log2 - 1}))) {
    --pack.log2;
  }
  PackGqa of_tile = pack;
  while (of_tile.log2 > 0 && of_tile.rows(call.seqlen_q) > c.shape.block_m) --of_tile.log2;
  return may_decode(c, call) && fits_few_waves(c, call, of_tile, num_sms) ? of_tile : pack;
}

Tiling whole_tiles(const Kernel& c, const ForwardCall& call, PackGqa pack, int num_sms) {
  return {pack, choose_scheduler(c, call, pack, num_sms), {}};
}

Tiling choose_split(const Kernel& c, const ForwardCall& call, int num_splits, int num_sms) {
  if (num_splits == 1) return {};
  const PackGqa pack = choose_split_pack(c, call, num_sms);
  if (num_splits > 1) return choose_fixed_split(c, call, pack, num_splits);
  return split_by_stream_k(c, call, pack, num_sms);
}

Tiling choose_tiling(const Kernel& c, const ForwardCall& call, int num_splits, int num_sms) {
  const Tiling split = choose_split(c, call, num_splits, num_sms);
  return split.is_split() ? split : whole_tiles(c, call, choose_pack(c, call), num_sms);
}

bool fits_one_wave(const Kernel& c, const ForwardCall& call, PackGqa pack, int num_sms) {
  return call.varlen && c.can_split() &&
         num_split_tiles(c, call, pack) <= int64_t{num_sms} * c.shape.ctas_per_sm;
}

bool combines_in_kernel(const Kernel& c, const ForwardCall& call, const Tiling& tiling) {
  const int64_t rows = ceil_div(tiling.pack.rows(call.seqlen_q), 1 << tiling.split.cluster_log2);
  const int64_t most = rows <= kFewRowsToCombine ? kMostFewRowsToCombine : kMostRowsToCombine;
  return rows * most_splits(c, call, tiling) <= most;
}

}  // namespace fa3::hopper
