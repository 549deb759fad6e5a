// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/choose_row.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "engine/hopper/choose_tiles.h"
#include "engine/hopper/compiled_cache.h"
#include "engine/hopper/compiled_decode.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kManyKeys = 512;

ForwardConfig general(const ForwardConfig& c) {
  return c.with(c.element, Variant::kGeneral);
}
bool can_cut(const ForwardConfig& c) {
  return general(c).cuts();
}

// Where a page's boxes would be small, a kernel whose threads can copy keys; of some page sizes it has
// larger boxes.
int choose_row_for_pages(ForwardShape shape, std::span<const CompiledForward> table,
                         const ForwardLaunch& launch) {
  const int row = choose_row(shape, table);
  if (!has_small_boxes(table[row].config, launch)) return row;
  shape.cut = true;
  const int other = choose_row(shape, table);
  return other != kNoRow ? other : row;
}

// The same for every batch: the head dims, the group, num_splits and the pages' size decide. Parts of
// keys take the kernel of few queries, whole tiles that of long sequences.
int choose_for_any_batch(const Problem& problem, ForwardLaunch* launch) {
  ForwardShape shape = shape_of(problem);
  shape.cut = problem.num_splits > 1;
  shape.keys = INT64_MAX;
  shape.rows = shape.cut ? 1 : INT64_MAX;
  launch->pack = most_packed(problem.group(), shape.cut);
  if (shape.cut) launch->cut.parts = problem.num_splits;
  return choose_row_for_pages(shape, table_of(problem), *launch);
}

// Of whole tiles of dense queries, the rows that the busiest multiprocessor goes through.
int64_t most_rows(const ForwardConfig& c, ForwardLaunch launch, int multiprocessors) {
  launch.ragged = false;  // whose tiles are counted as if queries were
  launch.pack = choose_pack(c, launch);
  const int64_t at_once = int64_t{multiprocessors} * c.blocks;
  return ceil_div(forward_num_tiles(c, launch), at_once) * c.blocks * c.block_m;
}

// Whether another row's smaller tiles of the same columns occupy the multiprocessors so much better that
// they are done first, though each takes longer for its size.
bool fills_better(const ForwardConfig& other, const ForwardConfig& c, const ForwardLaunch& launch,
                  int multiprocessors) {
  constexpr double kLongerForItsSize =
      1.1;  // of tiles of 128 rows; those of 64 are for few queries
  const bool same_columns = other.head_dim == c.head_dim && other.head_dim_v == c.head_dim_v;
  const bool alike = launch.mask.hides_nothing() || launch.seqlen_k >= 2 * launch.seqlen_q;
  return same_columns && alike && !launch.lengths_q.ragged && other.consumers() > 1 &&
         double(most_rows(other, launch, multiprocessors)) * kLongerForItsSize <
             double(most_rows(c, launch, multiprocessors));
}

// Whether tiles of 64 rows come in runs for two thread blocks a multiprocessor, whose pieces a kernel is to
// merge. Tiles of 128 rows come in half as many; if the queries fill more than a quarter, that is worth more
// than products of empty rows cost.
bool leaves_many_pieces(const ForwardConfig& c, const ForwardLaunch& launch, int multiprocessors) {
  return c.consumers() == 1 && !c.widens() && launch.cut.parts == KeyCut::kRuns &&
         launch.cut.blocks > multiprocessors &&
         launch.pack.rows(launch.seqlen_q) > kRowsPerWarpgroup / 2 && !merges_soon(c, launch);
}

// A row for more queries, of the same columns, that cuts tiles; or kNoRow.
int choose_wider(ForwardShape shape, std::span<const CompiledForward> table, int row) {
  shape.cut = true;
  shape.rows = INT64_MAX;
  const int other = choose_row(shape, table);
  if (other == kNoRow) return kNoRow;
  const ForwardConfig &c = table[row].config, &wide = table[other].config;
  return wide.head_dim == c.head_dim && wide.head_dim_v == c.head_dim_v ? other : kNoRow;
}

// The row, the pack and the cut that suit a problem's size.
int choose_for_size(const Problem& problem, int multiprocessors, ForwardLaunch* launch) {
  const std::span<const CompiledForward> table = table_of(problem);
  const auto choose = [&](int row) {
    launch->pack = choose_pack(table[row].config, *launch);
    choose_cut(table[row].config, problem.num_splits, multiprocessors, launch);
  };
  ForwardShape shape = shape_of(problem);
  const int row = choose_row_for_pages(shape, table, *launch);
  choose(row);
  if (leaves_many_pieces(table[row].config, *launch, multiprocessors)) {
    const int wider = choose_wider(shape, table, row);
    if (wider != kNoRow) {
      choose(wider);
      return wider;
    }
  }
  if (can_cut(table[row].config)) return row;
  const bool cut_would_pay = launch->cut.active();
  launch->cut = {};
  shape.cut = true;
  const int other = choose_row(shape, table);
  if (cut_would_pay && other != kNoRow) {
    choose(other);
    if (launch->cut.active()) return other;
  }
  const bool takes_other = other != kNoRow && fills_better(table[other].config, table[row].config,
                                                           *launch, multiprocessors);
  const int whole = takes_other ? other : row;
  launch->pack = choose_pack(table[whole].config, *launch);
  return whole;
}

}  // namespace

std::span<const CompiledForward> table_of(const Problem& p) {
  if (p.has_e4m3()) return kCacheTable;
  return kForwardTable;
}

ForwardShape shape_of(const Problem& p) {
  // A window between two bounds, or a chunk, is what one query sees.
  const MaskRuleOf<int> mask = narrow_mask(p);
  const bool bounded = mask.left >= 0 && mask.right >= 0;
  const int64_t window = bounded ? int64_t{mask.left} + mask.right + 1 : p.lengths_k.max;
  const int64_t chunk = mask.chunk != mask.kNoChunks ? mask.chunk : p.lengths_k.max;
  const int64_t keys = std::min({window, chunk, p.lengths_k.max});
  // Sequences of one length and few keys are spread over multiprocessors by their tiles.
  const bool may_be_many = is_ragged(p) || keys >= kManyKeys;
  return {.head_dim = p.head_dim,
          .head_dim_v = std::min(p.head_dim_v, kMaxColumnsV),
          .keys = keys,
          .rows = may_be_many ? most_packed(p.group()).rows(p.lengths_q.max) : INT64_MAX,
          .single_rows = reads_single_rows(p.key_places, p.lengths_k),
          .any_rows = has_other_rows(p)};
}

bool copies_single_rows(const ForwardConfig& c) {
  const auto is_wide = [&](int columns) {
    return tile::TileLayout{1, columns, bytes_of(c.stored())}.row_bytes() % 128 == 0;
  };
  return c.streams() || (is_wide(c.head_dim) && is_wide(c.head_dim_v));
}

int choose_row(const ForwardShape& shape, std::span<const CompiledForward> table) {
  int best = kNoRow;
  for (int row = 0; row < int(table.size()); ++row) {
    const auto& [config, max_keys, max_rows, why] = table[row];
    if (config.head_dim < shape.head_dim || config.head_dim_v < shape.head_dim_v) continue;
    if (shape.single_rows && !copies_single_rows(config)) continue;
    if (shape.any_rows && !general(config).stores_any_rows()) continue;
    if (best != kNoRow) {
      const ForwardConfig& group = table[best].config;
      if (config.head_dim != group.head_dim || config.head_dim_v != group.head_dim_v) break;
    }
    const bool fits = shape.cut ? can_cut(config) : shape.keys <= max_keys;
    const bool last_resort = shape.any_rows && best == kNoRow;
    if (fits && (shape.rows <= max_rows || last_resort)) best = row;
  }
  return best;
}

int choose_row_and_cut(const Problem& problem, int multiprocessors, ForwardLaunch* launch) {
  if (problem.batch_invariant) return choose_for_any_batch(problem, launch);
  const int row = choose_for_size(problem, multiprocessors, launch);
  const ForwardConfig config = general(table_of(problem)[size_t(row)].config);
  launch->cut.numbered = has_all_tiles_at_once(config, *launch, multiprocessors);
  return row;
}

bool decodes(const ForwardConfig& config, const Problem& p, const ForwardLaunch& launch) {
  return p.softcap == 0.0f && !has_other_rows(p) && can_decode(config, launch);
}

// The row of kDecodeTable for a call that row `row` would cut into runs, or kNoRow.
int choose_decode_row(const Problem& problem, int row, const ForwardLaunch& launch) {
  const ForwardConfig& c = table_of(problem)[size_t(row)].config;
  for (int i = 0; i < int(kDecodeTable.size()); ++i) {
    const ForwardConfig& d = kDecodeTable[size_t(i)].config;
    const bool same_tile = d.head_dim == c.head_dim && d.head_dim_v == c.head_dim_v &&
                           d.block_m == c.block_m && d.block_n == c.block_n &&
                           d.widens() == c.widens();
    if (same_tile && decodes(d, problem, launch)) return i;
  }
  return kNoRow;
}

}  // namespace fa3::hopper
