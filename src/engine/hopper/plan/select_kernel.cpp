// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select_kernel.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "engine/hopper/instances/cache_table.h"
#include "engine/hopper/instances/stream_k_table.h"
#include "engine/hopper/plan/choose_split.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kManyKeys = 512;

ForwardConfig general(const ForwardConfig& c) {
  return c.with(c.element, Variant::kGeneral);
}
bool can_split_general(const ForwardConfig& c) {
  return general(c).can_split();
}

// Where a page's boxes would be small, a kernel whose threads can copy keys; of some page sizes it
// has larger boxes.
int select_kernel_for_pages(ForwardShape shape, std::span<const KernelInstance> table,
                            const ForwardLaunch& launch) {
  const int row = select_kernel(shape, table);
  if (!has_small_boxes(table[row].config, launch)) return row;
  shape.split = true;
  const int other = select_kernel(shape, table);
  return other != kNoKernel ? other : row;
}

// The same for every batch: the head dims, the group, num_splits and the pages' size decide. Parts
// of keys take the kernel of few queries, whole tiles that of long sequences.
int choose_for_any_batch(const Problem& problem, ForwardLaunch* launch) {
  ForwardShape shape = shape_of(problem);
  shape.split = problem.num_splits > 1;
  shape.keys = INT64_MAX;
  shape.rows = shape.split ? 1 : INT64_MAX;
  launch->pack = most_packed(problem.group(), shape.split);
  if (shape.split) launch->split.num_splits = problem.num_splits;
  return select_kernel_for_pages(shape, table_of(problem), *launch);
}

// Of whole tiles of dense queries, the rows that the busiest SM goes through.
int64_t most_rows(const ForwardConfig& c, ForwardLaunch launch, int num_sms) {
  launch.varlen = false;  // whose tiles are counted as if queries were
  launch.pack = choose_pack(c, launch);
  const int64_t at_once = int64_t{num_sms} * c.ctas_per_sm;
  return ceil_div(forward_num_tiles(c, launch), at_once) * c.ctas_per_sm * c.block_m;
}

// Whether another row's smaller tiles of the same columns occupy the SMs so much better that
// they are done first, though each takes longer for its size.
bool fills_better(const ForwardConfig& other, const ForwardConfig& c, const ForwardLaunch& launch,
                  int num_sms) {
  constexpr double kLongerForItsSize =
      1.1;  // of tiles of 128 rows; those of 64 are for few queries
  const bool same_columns = other.head_dim == c.head_dim && other.head_dim_v == c.head_dim_v;
  const bool alike = launch.mask.hides_nothing() || launch.seqlen_k >= 2 * launch.seqlen_q;
  return same_columns && alike && !launch.lengths_q.varlen && other.consumers() > 1 &&
         double(most_rows(other, launch, num_sms)) * kLongerForItsSize <
             double(most_rows(c, launch, num_sms));
}

// Whether tiles of 64 rows come in runs for two CTAs an SM, whose splits a kernel is to
// combine. Tiles of 128 rows come in half as many; if the queries fill more than a quarter, that is
// worth more than products of empty rows cost.
bool leaves_many_splits(const ForwardConfig& c, const ForwardLaunch& launch, int num_sms) {
  return c.consumers() == 1 && !c.dequantizes() && launch.split.num_splits == SplitKv::kStreamK &&
         launch.split.ctas > num_sms && launch.pack.rows(launch.seqlen_q) > kRowsPerWarpgroup / 2 &&
         !combines_in_kernel(c, launch);
}

// A row for more queries, of the same columns, that splits tiles; or kNoKernel.
int choose_wider(ForwardShape shape, std::span<const KernelInstance> table, int row) {
  shape.split = true;
  shape.rows = INT64_MAX;
  const int other = select_kernel(shape, table);
  if (other == kNoKernel) return kNoKernel;
  const ForwardConfig &c = table[row].config, &wide = table[other].config;
  return wide.head_dim == c.head_dim && wide.head_dim_v == c.head_dim_v ? other : kNoKernel;
}

// The row, the pack and the split that suit a problem's size.
int choose_for_size(const Problem& problem, int num_sms, ForwardLaunch* launch) {
  const std::span<const KernelInstance> table = table_of(problem);
  const auto choose = [&](int row) {
    launch->pack = choose_pack(table[row].config, *launch);
    choose_split(table[row].config, problem.num_splits, num_sms, launch);
  };
  ForwardShape shape = shape_of(problem);
  const int row = select_kernel_for_pages(shape, table, *launch);
  choose(row);
  if (leaves_many_splits(table[row].config, *launch, num_sms)) {
    const int wider = choose_wider(shape, table, row);
    if (wider != kNoKernel) {
      choose(wider);
      return wider;
    }
  }
  if (can_split_general(table[row].config)) return row;
  const bool cut_would_pay = launch->split.active();
  launch->split = {};
  shape.split = true;
  const int other = select_kernel(shape, table);
  if (cut_would_pay && other != kNoKernel) {
    choose(other);
    if (launch->split.active()) return other;
  }
  const bool takes_other =
      other != kNoKernel && fills_better(table[other].config, table[row].config, *launch, num_sms);
  const int whole = takes_other ? other : row;
  launch->pack = choose_pack(table[whole].config, *launch);
  return whole;
}

}  // namespace

std::span<const KernelInstance> table_of(const Problem& p) {
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
  // Sequences of one length and few keys are spread over SMs by their tiles.
  const bool may_be_many = is_varlen(p) || keys >= kManyKeys;
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
  return c.is_decode() || (is_wide(c.head_dim) && is_wide(c.head_dim_v));
}

int select_kernel(const ForwardShape& shape, std::span<const KernelInstance> table) {
  int best = kNoKernel;
  for (int row = 0; row < int(table.size()); ++row) {
    const auto& [config, max_keys, max_rows, why] = table[row];
    if (config.head_dim < shape.head_dim || config.head_dim_v < shape.head_dim_v) continue;
    if (shape.single_rows && !copies_single_rows(config)) continue;
    if (shape.any_rows && !general(config).stores_any_rows()) continue;
    if (best != kNoKernel) {
      const ForwardConfig& group = table[best].config;
      if (config.head_dim != group.head_dim || config.head_dim_v != group.head_dim_v) break;
    }
    const bool fits = shape.split ? can_split_general(config) : shape.keys <= max_keys;
    const bool last_resort = shape.any_rows && best == kNoKernel;
    if (fits && (shape.rows <= max_rows || last_resort)) best = row;
  }
  return best;
}

int select_kernel_and_split(const Problem& problem, int num_sms, ForwardLaunch* launch) {
  if (problem.batch_invariant) return choose_for_any_batch(problem, launch);
  const int row = choose_for_size(problem, num_sms, launch);
  const ForwardConfig config = general(table_of(problem)[size_t(row)].config);
  launch->split.direct = fits_one_wave(config, *launch, num_sms);
  return row;
}

bool always_splits(const ForwardConfig& config, const Problem& p, const ForwardLaunch& launch) {
  return p.softcap == 0.0f && !has_other_rows(p) && can_always_split(config, launch);
}

// The row of kStreamKTable for a call that row `row` would split into stream-K ranges, or
// kNoKernel.
int select_stream_k(const Problem& problem, int row, const ForwardLaunch& launch) {
  const ForwardConfig& c = table_of(problem)[size_t(row)].config;
  for (int i = 0; i < int(kStreamKTable.size()); ++i) {
    const ForwardConfig& d = kStreamKTable[size_t(i)].config;
    const bool same_tile = d.head_dim == c.head_dim && d.head_dim_v == c.head_dim_v &&
                           d.block_m == c.block_m && d.block_n == c.block_n &&
                           d.dequantizes() == c.dequantizes();
    if (same_tile && always_splits(d, problem, launch)) return i;
  }
  return kNoKernel;
}

}  // namespace fa3::hopper
