// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/choose_split.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/ceil_div.h"
#include "core/workspace.h"
#include "engine/hopper/plan/count_tiles.h"

namespace fa3::hopper {
namespace {

// Q comes 64 rows a copy, which must be whole queries of one pack. Tiles that are not split take up
// to a warp's rows.
constexpr int kMaxPackLog2 = 4;
constexpr int kMaxPackLog2OfSplitTiles = 6;

// Microseconds on an H200, measured (docs/lab/decoding.md): of a key of a tile and of each
// of its columns, of a combine until it ends, of a byte of its splits, written and read. What a
// split saves must be worth the trouble.
constexpr double kKeyTime = 0.0035, kColumnTime = 36e-6;
constexpr double kCombineTime = 6.5;
constexpr double kPartialByteTime = 0.2e-6;
constexpr double kMetadataTime = 2.5;  // of sequences, which split tiles do without
constexpr double kWorthSplitting = 0.9;
constexpr int64_t kFewTilesEach = 4;
// Of a tile in splits, that a CTA combines alone: rows times splits; more if rows are few.
constexpr int64_t kMostRowsToCombine = 200, kFewRowsToCombine = 16, kMostFewRowsToCombine = 280;
// Fewer keys are never split.
constexpr int kLeastKeysToSplit = 512;
// Of the CTAs that there is room for, so many get a range.
constexpr double kBusyRanges = 0.96;
// Up to so many key blocks in each, a range for each SM is enough.
constexpr int64_t kShortRange = 32;
// Boxes of fewer rows of a page are slower than copies by threads (docs/lab/decoding.md).
constexpr int kLeastBoxRows = 64;
constexpr int64_t kMaxPackedRows = int64_t{1} << 30;  // row numbers are 32-bit in the kernels

// As many heads as save tiles. The others are packs of their own, whose runs lie side by side: they
// read the same keys at the same time, as tiles in a row would not.
PackGqa pack_of_split_tiles(const ForwardConfig& c, const ForwardLaunch& launch) {
  PackGqa pack = most_packed(launch.heads_per_kv_head, true);
  const auto tiles = [&](PackGqa of) {
    return ceil_div(of.rows(launch.seqlen_q), c.block_m) * (launch.q.heads / of.heads());
  };
  while (pack.log2 > 0 &&
         (pack.rows(launch.q.rows) > kMaxPackedRows || tiles(pack) >= tiles({pack.log2 - 1}))) {
    --pack.log2;
  }
  return pack;
}

// As many rows of units side by side as leave no more CTAs without a range than that.
int groups_log2(int64_t packs, int64_t blocks, double least_busy) {
  int log2 = std::countr_zero(uint64_t(packs));
  while (log2 > 0 && double(blocks >> log2 << log2) < least_busy * double(blocks)) --log2;
  return log2;
}

// Of the keys of the longest sequence, as many as a tile visits at most: few under a window.
int visible_keys(const ForwardConfig& c, const ForwardLaunch& split) {
  const SequenceTiles longest{.keys = {.count = split.seqlen_k}};
  return std::min(split.seqlen_k, split_kv_schedule(c, split).most_blocks(longest) * c.block_n);
}

// Of queries that are varlen, the most that there can be.
int64_t expected_tiles(const ForwardConfig& c, const ForwardLaunch& split) {
  return std::min(num_tiles(c, split, split.pack), num_split_tiles(c, split));
}

// Of the longest sequence's.
double tile_time(const ForwardConfig& c, const ForwardLaunch& split) {
  return visible_keys(c, split) * (kKeyTime + kColumnTime * (c.head_dim + c.head_dim_v));
}

double combine_time(const ForwardConfig& c, const ForwardLaunch& split, int64_t most_blocks) {
  const int64_t rows = std::min<int64_t>(c.block_m, split.pack.rows(split.seqlen_q));
  const double piece_bytes = double(most_blocks * rows * split.o.columns) * 2 * sizeof(float);
  return kCombineTime + piece_bytes * kPartialByteTime;
}

// Whether split tiles are done sooner than whole ones. Of these some SMs may have none, or one
// more than others; split ones occupy all, but are combined.
bool split_pays(const ForwardConfig& c, const ForwardLaunch& split, int64_t most_blocks) {
  const int64_t tiles = expected_tiles(c, split);
  const double tile = tile_time(c, split);
  const bool needs_metadata = split.varlen && tiles > most_blocks;
  const double whole =
      double(ceil_div(tiles, most_blocks)) * tile + (needs_metadata ? kMetadataTime : 0);
  const double partials = double(tiles) * tile / double(most_blocks);
  return partials + combine_time(c, split, most_blocks) < kWorthSplitting * whole;
}

// Rows side by side. Where packs share keys, products take the time, and a CTA without a range is
// missed: none is, if what they would all spare is worth a combine, and those packs still lie side
// by side.
int choose_groups_log2(const ForwardConfig& c, const ForwardLaunch& split, int64_t most_blocks) {
  const int most = groups_log2(num_packs(split), most_blocks, kBusyRanges);
  const int64_t sharing = split.heads_per_kv_head / split.pack.heads();
  if (sharing == 1) return most;
  const int all_busy = groups_log2(num_packs(split), most_blocks, 1);
  const int64_t busy = most_blocks >> most << most;
  const double keys_time = double(expected_tiles(c, split)) * tile_time(c, split);
  const double spared = keys_time / double(busy) - keys_time / double(most_blocks);
  const bool together = all_busy >= std::countr_zero(uint64_t(sharing));
  return together && spared > combine_time(c, split, most_blocks) ? all_busy : most;
}

// Lengths that only the device knows: runs are alike, tiles need not be, and an SM may still be
// at the longest when all others are done. Few queries are always split for that. Others, whose
// combines are longer, where each SM has few tiles, whose keys no other tile in the row reads, and
// take longer than a combine. Where all have a CTA at once, whole tiles take as long as the
// longest; runs as long as the mean, half of that, say, spread over all CTAs.
bool split_evens_out(const ForwardConfig& c, const ForwardLaunch& split, int64_t most_blocks) {
  if (!split.varlen || split.seqlen_k < kLeastKeysToSplit) return false;
  if (c.consumers() == 1) return true;
  // A few hundred columns. NOLINTNEXTLINE(bugprone-implicit-widening-of-multiplication-result)
  const bool fits = 2 * (c.head_dim + c.head_dim_v) <= 3 * (split.q.columns + split.o.columns);
  const int64_t tiles = expected_tiles(c, split);
  const double share = tiles <= most_blocks ? 0.5 * double(tiles) / double(most_blocks) : 0;
  const double spared = tile_time(c, split) * (1 - share);
  return fits && most_m_blocks(c, split) == 1 && tiles <= kFewTilesEach * most_blocks &&
         combine_time(c, split, most_blocks) < spared;
}

// A range for each CTA; where runs are short, for each SM, which leaves fewer splits
// to combine. Rather a few less than runs that end within tiles, where tiles are alike.
int64_t ranges_in_a_group(int64_t tiles, int64_t units, int64_t blocks, int64_t num_sms) {
  const bool are_short = units <= kShortRange * num_sms;
  const int64_t most = std::min(are_short ? num_sms : blocks, units);
  if (most < tiles) return most;
  const int64_t whole = most / tiles * tiles;
  return double(whole) >= kBusyRanges * double(most) ? whole : most;
}

// CTAs of a cluster have runs in common: what they have of a tile is joined in shared memory, and
// fewer splits are combined. Larger ones than pairs leave SMs without work.
int choose_cluster_log2(const ForwardConfig& c, int64_t tiles, int64_t num_sms) {
  return c.is_decode() && 2 * tiles <= num_sms ? 1 : 0;
}

}  // namespace

PackGqa most_packed(int64_t heads_per_kv_head, bool split) {
  const int most = split ? kMaxPackLog2OfSplitTiles : kMaxPackLog2;
  return {std::min(std::countr_zero(uint64_t(heads_per_kv_head)), most)};
}

// Packing pays where tiles would be partly empty, and where a causal mask splits through them:
// fewer queries a tile leave less beside the diagonal.
PackGqa choose_pack(const ForwardConfig& c, const ForwardLaunch& launch) {
  PackGqa most = most_packed(launch.heads_per_kv_head);
  while (most.rows(launch.q.rows) > kMaxPackedRows) --most.log2;
  const bool cut_by_mask = !launch.mask.hides_nothing() && launch.seqlen_q >= c.block_m;
  const bool saves_tiles = num_tiles(c, launch, most) < num_tiles(c, launch, PackGqa{});
  return cut_by_mask || saves_tiles ? most : PackGqa{};
}

// Boxes begin with a multiple of their rows in a page and in a tile; left padding begins anywhere.
int page_box_rows(const ForwardConfig& c, const ForwardLaunch& launch) {
  if (!launch.places.paged()) return c.block_n;
  if (launch.lengths_k.padded_left) return 1;
  return int(std::gcd(launch.places.page_size, int64_t{c.block_n}));
}

bool has_small_boxes(const ForwardConfig& c, const ForwardLaunch& launch) {
  return page_box_rows(c, launch) < std::min(kLeastBoxRows, c.block_n);
}

void choose_split(const ForwardConfig& c, int num_splits, int num_sms, ForwardLaunch* launch) {
  ForwardLaunch split = *launch;
  split.pack = pack_of_split_tiles(c, *launch);
  const int keys = num_splits > 1 ? launch->seqlen_k : visible_keys(c, split);
  const int64_t blocks = ceil_div(keys, c.block_n);
  const int64_t tiles = num_tiles(c, split, split.pack);
  const int64_t most_blocks = int64_t{num_sms} * c.ctas_per_sm;
  if (capped_product(tiles, blocks) > INT32_MAX / 2) return;
  if (num_splits > 1) {
    split.split.num_splits = int(std::min<int64_t>(num_splits, blocks));
    const bool countable = capped_product(tiles, split.split.num_splits) <= INT32_MAX / 2;
    if (split.split.num_splits > 1 && countable) *launch = split;
    return;
  }
  // Queries that see half of the keys or less would make runs unequal.
  const bool alike = launch->mask.hides_nothing() || launch->seqlen_k >= 2 * launch->seqlen_q;
  if (num_splits == 1 || !alike) return;
  if (!split_pays(c, split, most_blocks) && !split_evens_out(c, split, most_blocks)) return;
  const int log2 = choose_groups_log2(c, split, most_blocks);
  const int64_t in_a_row = expected_tiles(c, split) >> log2;
  const int cluster_log2 = choose_cluster_log2(c, expected_tiles(c, split), num_sms);
  const int shared_log2 = log2 + cluster_log2;
  const int64_t runs = ranges_in_a_group(in_a_row, in_a_row * blocks, most_blocks >> shared_log2,
                                         num_sms >> shared_log2);
  split.split = {.num_splits = SplitKv::kStreamK,
                 .ctas = int(runs << log2),
                 .groups_log2 = log2,
                 .cluster_log2 = cluster_log2};
  *launch = split;
}

bool fits_one_wave(const ForwardConfig& c, const ForwardLaunch& launch, int num_sms) {
  return launch.varlen && c.can_split() && !launch.split.active() &&
         num_split_tiles(c, launch) <= int64_t{num_sms} * c.ctas_per_sm;
}

bool combines_in_kernel(const ForwardConfig& c, const ForwardLaunch& launch) {
  const int64_t rows = ceil_div(launch.pack.rows(launch.seqlen_q), 1 << launch.split.cluster_log2);
  const int64_t most = rows <= kFewRowsToCombine ? kMostFewRowsToCombine : kMostRowsToCombine;
  return rows * most_splits(c, launch) <= most;
}

}  // namespace fa3::hopper
