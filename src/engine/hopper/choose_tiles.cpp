// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/choose_tiles.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/ceil_div.h"
#include "core/workspace.h"
#include "engine/hopper/count_tiles.h"

namespace fa3::hopper {
namespace {

// Q comes 64 rows a copy, which must be whole queries of one pack. Tiles that are not cut take up to a
// warp's rows.
constexpr int kMaxPackLog2 = 4;
constexpr int kMaxPackLog2OfCutTiles = 6;

// Microseconds on an H200, measured (docs/performance-decoding.md): of a key of a tile and of each of its
// columns, of a merge until it ends, of a byte of its pieces, written and read. What a cut saves must be
// worth the trouble.
constexpr double kKeyTime = 0.0035, kColumnTime = 36e-6;
constexpr double kMergeTime = 6.5;
constexpr double kPieceByteTime = 0.2e-6;
constexpr double kListTime = 2.5;  // of sequences, which cut tiles do without
constexpr double kWorthCutting = 0.9;
constexpr int64_t kFewTilesEach = 4;
// Of a tile in pieces, that a thread block merges alone: rows times pieces; more if rows are few.
constexpr int64_t kMostRowsToMerge = 200, kFewRowsToMerge = 16, kMostFewRowsToMerge = 280;
// Fewer keys are never cut.
constexpr int kLeastKeysToCut = 512;
// Of the thread blocks that there is room for, so many get a run.
constexpr double kBusyRuns = 0.96;
// Up to so many key blocks in each, a run for each multiprocessor is enough.
constexpr int64_t kShortRun = 32;
// Boxes of fewer rows of a page are slower than copies by threads (docs/performance-decoding.md).
constexpr int kLeastBoxRows = 64;
constexpr int64_t kMaxPackedRows = int64_t{1} << 30;  // row numbers are 32-bit in the kernels

// As many heads as save tiles. The others are packs of their own, whose runs lie side by side: they read
// the same keys at the same time, as tiles in a row would not.
HeadPack pack_of_cut_tiles(const ForwardConfig& c, const ForwardLaunch& launch) {
  HeadPack pack = most_packed(launch.heads_per_kv_head, true);
  const auto tiles = [&](HeadPack of) {
    return ceil_div(of.rows(launch.seqlen_q), c.block_m) * (launch.q.heads / of.heads());
  };
  while (pack.log2 > 0 &&
         (pack.rows(launch.q.rows) > kMaxPackedRows || tiles(pack) >= tiles({pack.log2 - 1}))) {
    --pack.log2;
  }
  return pack;
}

// As many rows of units side by side as leave no more thread blocks without a run than that.
int rows_log2(int64_t packs, int64_t blocks, double least_busy) {
  int log2 = std::countr_zero(uint64_t(packs));
  while (log2 > 0 && double(blocks >> log2 << log2) < least_busy * double(blocks)) --log2;
  return log2;
}

// Of the keys of the longest sequence, as many as a tile visits at most: few under a window.
int visible_keys(const ForwardConfig& c, const ForwardLaunch& cut) {
  const SequenceTiles longest{.keys = {.count = cut.seqlen_k}};
  return std::min(cut.seqlen_k, key_split(c, cut).most_blocks(longest) * c.block_n);
}

// Of queries that are ragged, the most that there can be.
int64_t expected_tiles(const ForwardConfig& c, const ForwardLaunch& cut) {
  return std::min(num_tiles(c, cut, cut.pack), num_cut_tiles(c, cut));
}

// Of the longest sequence's.
double tile_time(const ForwardConfig& c, const ForwardLaunch& cut) {
  return visible_keys(c, cut) * (kKeyTime + kColumnTime * (c.head_dim + c.head_dim_v));
}

double merge_time(const ForwardConfig& c, const ForwardLaunch& cut, int64_t most_blocks) {
  const int64_t rows = std::min<int64_t>(c.block_m, cut.pack.rows(cut.seqlen_q));
  const double piece_bytes = double(most_blocks * rows * cut.o.columns) * 2 * sizeof(float);
  return kMergeTime + piece_bytes * kPieceByteTime;
}

// Whether cut tiles are done sooner than whole ones. Of these some multiprocessors may have none, or one
// more than others; cut ones occupy all, but are merged.
bool cut_pays(const ForwardConfig& c, const ForwardLaunch& cut, int64_t most_blocks) {
  const int64_t tiles = expected_tiles(c, cut);
  const double tile = tile_time(c, cut);
  const bool are_listed = cut.ragged && tiles > most_blocks;
  const double whole = double(ceil_div(tiles, most_blocks)) * tile + (are_listed ? kListTime : 0);
  const double pieces = double(tiles) * tile / double(most_blocks);
  return pieces + merge_time(c, cut, most_blocks) < kWorthCutting * whole;
}

// Rows side by side. Where packs share keys, products take the time, and a thread block without a run is
// missed: none is, if what they would all spare is worth a merge, and those packs still lie side by side.
int choose_rows_log2(const ForwardConfig& c, const ForwardLaunch& cut, int64_t most_blocks) {
  const int most = rows_log2(num_packs(cut), most_blocks, kBusyRuns);
  const int64_t sharing = cut.heads_per_kv_head / cut.pack.heads();
  if (sharing == 1) return most;
  const int all_busy = rows_log2(num_packs(cut), most_blocks, 1);
  const int64_t busy = most_blocks >> most << most;
  const double keys_time = double(expected_tiles(c, cut)) * tile_time(c, cut);
  const double spared = keys_time / double(busy) - keys_time / double(most_blocks);
  const bool together = all_busy >= std::countr_zero(uint64_t(sharing));
  return together && spared > merge_time(c, cut, most_blocks) ? all_busy : most;
}

// Lengths that only the device knows: runs are alike, tiles need not be, and a multiprocessor may still be
// at the longest when all others are done. Few queries are always cut for that. Others, whose merges are
// longer, where each multiprocessor has few tiles, whose keys no other tile in the row reads, and take
// longer than a merge. Where all have a thread block at once, whole tiles take as long as the longest; runs as
// long as the mean, half of that, say, spread over all thread blocks.
bool cut_evens_out(const ForwardConfig& c, const ForwardLaunch& cut, int64_t most_blocks) {
  if (!cut.ragged || cut.seqlen_k < kLeastKeysToCut) return false;
  if (c.consumers() == 1) return true;
  // A few hundred columns. NOLINTNEXTLINE(bugprone-implicit-widening-of-multiplication-result)
  const bool fits = 2 * (c.head_dim + c.head_dim_v) <= 3 * (cut.q.columns + cut.o.columns);
  const int64_t tiles = expected_tiles(c, cut);
  const double share = tiles <= most_blocks ? 0.5 * double(tiles) / double(most_blocks) : 0;
  const double spared = tile_time(c, cut) * (1 - share);
  return fits && most_m_blocks(c, cut) == 1 && tiles <= kFewTilesEach * most_blocks &&
         merge_time(c, cut, most_blocks) < spared;
}

// A run for each thread block; where runs are short, for each multiprocessor, which leaves fewer pieces
// to merge. Rather a few less than runs that end within tiles, where tiles are alike.
int64_t runs_in_a_row(int64_t tiles, int64_t units, int64_t blocks, int64_t multiprocessors) {
  const bool are_short = units <= kShortRun * multiprocessors;
  const int64_t most = std::min(are_short ? multiprocessors : blocks, units);
  if (most < tiles) return most;
  const int64_t whole = most / tiles * tiles;
  return double(whole) >= kBusyRuns * double(most) ? whole : most;
}

// Thread blocks of a cluster have runs in common: what they have of a tile is joined in shared memory, and
// fewer pieces are merged. Larger ones than pairs leave multiprocessors without work.
int choose_cluster_log2(const ForwardConfig& c, int64_t tiles, int64_t multiprocessors) {
  return c.streams() && 2 * tiles <= multiprocessors ? 1 : 0;
}

}  // namespace

HeadPack most_packed(int64_t heads_per_kv_head, bool cut) {
  const int most = cut ? kMaxPackLog2OfCutTiles : kMaxPackLog2;
  return {std::min(std::countr_zero(uint64_t(heads_per_kv_head)), most)};
}

// Packing pays where tiles would be partly empty, and where a causal mask cuts through them: fewer
// queries a tile leave less beside the diagonal.
HeadPack choose_pack(const ForwardConfig& c, const ForwardLaunch& launch) {
  HeadPack most = most_packed(launch.heads_per_kv_head);
  while (most.rows(launch.q.rows) > kMaxPackedRows) --most.log2;
  const bool cut_by_mask = !launch.mask.hides_nothing() && launch.seqlen_q >= c.block_m;
  const bool saves_tiles = num_tiles(c, launch, most) < num_tiles(c, launch, HeadPack{});
  return cut_by_mask || saves_tiles ? most : HeadPack{};
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

void choose_cut(const ForwardConfig& c, int num_splits, int multiprocessors,
                ForwardLaunch* launch) {
  ForwardLaunch cut = *launch;
  cut.pack = pack_of_cut_tiles(c, *launch);
  const int keys = num_splits > 1 ? launch->seqlen_k : visible_keys(c, cut);
  const int64_t blocks = ceil_div(keys, c.block_n);
  const int64_t tiles = num_tiles(c, cut, cut.pack);
  const int64_t most_blocks = int64_t{multiprocessors} * c.blocks;
  if (capped_product(tiles, blocks) > INT32_MAX / 2) return;
  if (num_splits > 1) {
    cut.cut.parts = int(std::min<int64_t>(num_splits, blocks));
    const bool countable = capped_product(tiles, cut.cut.parts) <= INT32_MAX / 2;
    if (cut.cut.parts > 1 && countable) *launch = cut;
    return;
  }
  // Queries that see half of the keys or less would make runs unequal.
  const bool alike = launch->mask.hides_nothing() || launch->seqlen_k >= 2 * launch->seqlen_q;
  if (num_splits == 1 || !alike) return;
  if (!cut_pays(c, cut, most_blocks) && !cut_evens_out(c, cut, most_blocks)) return;
  const int log2 = choose_rows_log2(c, cut, most_blocks);
  const int64_t in_a_row = expected_tiles(c, cut) >> log2;
  const int cluster_log2 = choose_cluster_log2(c, expected_tiles(c, cut), multiprocessors);
  const int shared_log2 = log2 + cluster_log2;
  const int64_t runs = runs_in_a_row(in_a_row, in_a_row * blocks, most_blocks >> shared_log2,
                                     multiprocessors >> shared_log2);
  cut.cut = {.parts = KeyCut::kRuns,
             .blocks = int(runs << log2),
             .rows_log2 = log2,
             .cluster_log2 = cluster_log2};
  *launch = cut;
}

bool has_all_tiles_at_once(const ForwardConfig& c, const ForwardLaunch& launch,
                           int multiprocessors) {
  return launch.ragged && c.cuts() && !launch.cut.active() &&
         num_cut_tiles(c, launch) <= int64_t{multiprocessors} * c.blocks;
}

bool merges_soon(const ForwardConfig& c, const ForwardLaunch& launch) {
  const int64_t rows = ceil_div(launch.pack.rows(launch.seqlen_q), 1 << launch.cut.cluster_log2);
  const int64_t most = rows <= kFewRowsToMerge ? kMostFewRowsToMerge : kMostRowsToMerge;
  return rows * most_pieces(c, launch) <= most;
}

}  // namespace fa3::hopper
