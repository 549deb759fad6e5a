// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select/choose_split.h"

#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
#include "core/workspace.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/tables/stream_k_table.h"

namespace fa3::hopper {
namespace {

// Q comes 64 rows a copy, which must be whole queries of one pack. Tiles that are not split take up
// to a warp's rows.
constexpr int kMaxPackLog2 = 4;
constexpr int kMaxPackLog2OfSplitTiles = 6;

// Microseconds on an H200, measured (docs/lab/decoding.md): for a key of a tile and for
// each of its columns, for a combine until it ends, for a byte of a split's result, written and
// read. What a split saves must be worth the trouble.
constexpr double kKeyTime = 0.0035, kColumnTime = 36e-6;
constexpr double kCombineTime = 6.5;
constexpr double kPartialByteTime = 0.2e-6;
constexpr double kMetadataTime = 2.5;  // of the varlen metadata kernel, which split tiles spare
constexpr double kWorthSplitting = 0.9;
// The mean of unknown lengths is thought to be some half of the longest: so long, on average, do
// ranges take, if tiles may as well be alike.
constexpr double kMeanRange = 0.75;
constexpr int64_t kFewTilesEach = 4;
// Splits of a causal tile, where tiles are few, and what all splits take for their keys: those of
// short tiles are hardly more than a beginning and an end.
constexpr int64_t kCausalSplits = 4;
constexpr double kCausalSplitTime = 1.6;
// The largest rows x splits that one CTA combines in the kernel; more if rows are few.
constexpr int64_t kMostRowsToCombine = 200, kFewRowsToCombine = 16, kMostFewRowsToCombine = 280;
// Fewer keys are never split.
constexpr int kLeastKeysToSplit = 512;
// The least share of the resident CTAs that must get a range.
constexpr double kBusyRanges = 0.96;
// Where ranges have at most this many KV blocks, one for each SM is enough.
constexpr int64_t kShortRange = 32;
constexpr int64_t kMaxPackedRows = int64_t{1} << 30;  // row numbers are 32-bit in the kernels

// As many rows of KV blocks side by side as leave at least this share of the CTAs with a range.
int groups_log2(int64_t packs, int64_t ctas, double least_busy) {
  int log2 = std::countr_zero(uint64_t(packs));
  while (log2 > 0 && double(ctas >> log2 << log2) < least_busy * double(ctas)) --log2;
  return log2;
}

// Whether tiles have not many more columns than tensors.
bool fits_columns(const ForwardConfig& c, const ForwardCall& call) {
  // A few hundred columns. NOLINTNEXTLINE(bugprone-implicit-widening-of-multiplication-result)
  return 2 * (c.head_dim + c.head_dim_v) <= 3 * (call.q.columns + call.o.columns);
}

// Whether a kernel that does nothing but decode may take tiles of more than 64 rows.
bool may_decode(const ForwardConfig& c, const ForwardCall& call) {
  const SplitKvSchedule schedule = split_kv_schedule(c, call, {});
  return c.consumers() > 1 && stream_k_row(c) < kStreamKTable.size() && fits_columns(c, call) &&
         call.sequences <= kFewSequences && call.seqlen_q <= c.block_m && call.softcap == 0 &&
         schedule.is_simple() && hides_right_only(call.mask);
}

bool fits_few_waves(const ForwardConfig& c, const ForwardCall& call, PackGqa pack, int num_sms) {
  return num_split_tiles(c, call, pack) <= kFewWaves * num_sms * c.ctas_per_sm;
}

// A call whose tiles would be split for `most_ctas` resident CTAs, with these heads in each.
struct SplitCase {
  const ForwardConfig& c;
  const ForwardCall& call;
  PackGqa pack;
  int64_t most_ctas;
  int64_t tiles;      // where queries are varlen, the most that there can be
  int visible_keys;   // of the longest sequence, that a tile visits at most: few under a window
  bool starts_whole;  // a kernel that does nothing but decode would take whole tiles

  // The longest sequence's.
  double tile_time() const {
    return visible_keys * (kKeyTime + kColumnTime * (c.head_dim + c.head_dim_v));
  }
  double combine_time(int64_t partials) const {
    const int64_t rows = std::min<int64_t>(c.block_m, pack.rows(call.seqlen_q));
    const double partial_bytes = double(partials * rows * call.o.columns) * 2 * sizeof(float);
    return kCombineTime + partial_bytes * kPartialByteTime;
  }
  double combine_time() const { return combine_time(most_ctas); }
};

SplitCase split_case(const ForwardConfig& c, const ForwardCall& call, PackGqa pack, int num_sms) {
  const SequenceTiles longest{.keys = {.count = call.seqlen_k}};
  const SplitKvSchedule schedule = split_kv_schedule(c, call, {.pack = pack});
  const int blocks = schedule.most_blocks(longest);
  const int64_t most_ctas = int64_t{num_sms} * c.ctas_per_sm;
  const int64_t tiles = std::min(num_tiles(c, call, pack), num_split_tiles(c, call, pack));
  return {c,
          call,
          pack,
          most_ctas,
          tiles,
          std::min(call.seqlen_k, blocks * c.block_n),
          may_decode(c, call) && fits_few_waves(c, call, pack, num_sms)};
}

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

// Where packs share keys, products take the time, and a CTA without a range is missed: all get one
// if what they spare is worth a combine, and the packs that share keys still lie side by side.
int choose_groups_log2(const SplitCase& s) {
  const int64_t packs = num_packs(s.call, s.pack);
  const int most = groups_log2(packs, s.most_ctas, kBusyRanges);
  const int64_t sharing = s.call.heads_per_kv_head / s.pack.heads();
  if (sharing == 1) return most;
  const int all_busy = groups_log2(packs, s.most_ctas, 1);
  const int64_t busy = s.most_ctas >> most << most;
  const double keys_time = double(s.tiles) * s.tile_time();
  const double spared = keys_time / double(busy) - keys_time / double(s.most_ctas);
  const bool together = all_busy >= std::countr_zero(uint64_t(sharing));
  return together && spared > s.combine_time() ? all_busy : most;
}

// Causal tiles that all have an SM at once take as long as the longest one, which sees all keys;
// in splits they take as long as its part, or as all of them over the SMs.
bool causal_split_pays(const SplitCase& s) {
  const bool are_unequal = s.call.is_causal() && !s.call.tiles_are_alike();
  if (!are_unequal || s.call.varlen || s.tiles > s.most_ctas) return false;
  const double whole = s.tile_time();
  const double seen = 1 - 0.5 * double(s.call.seqlen_q) / double(s.call.seqlen_k);
  const double all = kCausalSplitTime * seen * double(s.tiles) * whole / double(s.most_ctas);
  const double splits = std::max(all, whole / double(kCausalSplits));
  return splits + s.combine_time(s.tiles * kCausalSplits) < kWorthSplitting * whole;
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
int choose_cluster_log2(const ForwardConfig& c, int64_t tiles, int64_t num_sms) {
  return c.is_decode() && 2 * tiles <= num_sms ? 1 : 0;
}

Tiling choose_fixed_split(const ForwardConfig& c, const ForwardCall& call, PackGqa pack,
                          int64_t num_splits) {
  const int64_t tiles = num_tiles(c, call, pack), blocks = ceil_div(call.seqlen_k, c.block_n);
  num_splits = std::min(num_splits, blocks);
  const bool is_countable = capped_product(tiles, blocks) < SplitKvSchedule::kMostConcatenated;
  if (num_splits <= 1 || !is_countable) return {};
  return {pack, Scheduler::kFixedSplit, {.num_splits = int(num_splits)}};
}

Tiling split_by_stream_k(const ForwardConfig& c, const ForwardCall& call, PackGqa pack,
                         int num_sms) {
  const SplitCase s = split_case(c, call, pack, num_sms);
  const int64_t blocks = ceil_div(s.visible_keys, c.block_n);
  const int64_t most = capped_product(num_tiles(c, call, pack), blocks);
  if (most >= SplitKvSchedule::kMostConcatenated) return {};
  if (!call.tiles_are_alike() || s.tiles == 0 || !(split_pays(s) || split_evens_out(s))) return {};
  const int log2 = choose_groups_log2(s);
  const int64_t tiles_of_group = s.tiles >> log2;
  const int cluster_log2 = choose_cluster_log2(c, s.tiles, num_sms);
  const int shared_log2 = log2 + cluster_log2;
  const int64_t ranges = ranges_of_group(tiles_of_group, tiles_of_group * blocks,
                                         s.most_ctas >> shared_log2, num_sms >> shared_log2);
  return {pack,
          Scheduler::kStreamK,
          {.ctas = int(ranges << log2), .groups_log2 = log2, .cluster_log2 = cluster_log2}};
}

// Tiles that differ in length are drawn from a counter when a CTA is free; others, and those that
// all have an SM at once, need no counter to be cleared.
Scheduler choose_scheduler(const ForwardConfig& c, const ForwardCall& call, PackGqa pack,
                           int num_sms) {
  if (call.varlen) return Scheduler::kVarlenMetadata;
  const bool tiles_differ =
      call.block_mask.on || !call.mask.hides_nothing() || pack.rows(call.q.rows) % c.block_m != 0;
  const bool one_wave = num_tiles(c, call, pack) <= int64_t{num_sms} * c.ctas_per_sm;
  return tiles_differ && !one_wave ? Scheduler::kDynamicPersistent : Scheduler::kStaticPersistent;
}

}  // namespace

PackGqa most_packed(int64_t heads_per_kv_head, bool split) {
  const int most = split ? kMaxPackLog2OfSplitTiles : kMaxPackLog2;
  return {std::min(std::countr_zero(uint64_t(heads_per_kv_head)), most)};
}

// Packing pays where tiles would be partly empty, and where a causal mask splits through them:
// fewer queries a tile leave less beside the diagonal.
PackGqa choose_pack(const ForwardConfig& c, const ForwardCall& call) {
  PackGqa most = most_packed(call.heads_per_kv_head);
  while (most.rows(call.q.rows) > kMaxPackedRows) --most.log2;
  const bool cut_by_mask = !call.mask.hides_nothing() && call.seqlen_q >= c.block_m;
  const bool saves_tiles = num_tiles(c, call, most) < num_tiles(c, call, PackGqa{});
  return cut_by_mask || saves_tiles ? most : PackGqa{};
}

PackGqa choose_split_pack(const ForwardConfig& c, const ForwardCall& call, int num_sms) {
  PackGqa pack = most_packed(call.heads_per_kv_head, true);
  const auto tiles = [&](PackGqa of) {
    return ceil_div(of.rows(call.seqlen_q), c.block_m) * (call.q.heads / of.heads());
  };
  while (pack.log2 > 0 &&
         (pack.rows(call.q.rows) > kMaxPackedRows || tiles(pack) >= tiles({pack.log2 - 1}))) {
    --pack.log2;
  }
  PackGqa of_tile = pack;
  while (of_tile.log2 > 0 && of_tile.rows(call.seqlen_q) > c.block_m) --of_tile.log2;
  return may_decode(c, call) && fits_few_waves(c, call, of_tile, num_sms) ? of_tile : pack;
}

Tiling whole_tiles(const ForwardConfig& c, const ForwardCall& call, PackGqa pack, int num_sms) {
  return {pack, choose_scheduler(c, call, pack, num_sms), {}};
}

Tiling choose_split(const ForwardConfig& c, const ForwardCall& call, int num_splits, int num_sms) {
  if (num_splits == 1) return {};
  const PackGqa pack = choose_split_pack(c, call, num_sms);
  if (num_splits > 1) return choose_fixed_split(c, call, pack, num_splits);
  if (causal_split_pays(split_case(c, call, pack, num_sms))) {
    return choose_fixed_split(c, call, pack, kCausalSplits);
  }
  return split_by_stream_k(c, call, pack, num_sms);
}

Tiling choose_tiling(const ForwardConfig& c, const ForwardCall& call, int num_splits, int num_sms) {
  const Tiling split = choose_split(c, call, num_splits, num_sms);
  return split.is_split() ? split : whole_tiles(c, call, choose_pack(c, call), num_sms);
}

bool fits_one_wave(const ForwardConfig& c, const ForwardCall& call, PackGqa pack, int num_sms) {
  return call.varlen && c.can_split() &&
         num_split_tiles(c, call, pack) <= int64_t{num_sms} * c.ctas_per_sm;
}

bool combines_in_kernel(const ForwardConfig& c, const ForwardCall& call, const Tiling& tiling) {
  const int64_t rows = ceil_div(tiling.pack.rows(call.seqlen_q), 1 << tiling.split.cluster_log2);
  const int64_t most = rows <= kFewRowsToCombine ? kMostFewRowsToCombine : kMostRowsToCombine;
  return rows * most_splits(c, call, tiling) <= most;
}

}  // namespace fa3::hopper
