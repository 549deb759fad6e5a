// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select/select_kernel.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/select/choose_kv_loader.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/tables/cache_table.h"
#include "engine/hopper/tables/continued_table.h"
#include "engine/hopper/tables/dropout_table.h"
#include "engine/hopper/tables/mask_table.h"
#include "engine/hopper/tables/stream_k_table.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kManyKeys = 512;
constexpr int64_t kFewRows = 64, kLongKeys = 1536;
// That the CTA which opens a tile combines, if lengths are even. Where they are not, a long tile
// has more, which one SM loads: of 8 sequences for 16 ranges each a call took 2 us longer than with
// a combine kernel (docs/lab/decoding.md).
constexpr int64_t kMostSplitsToOpener = 2;

ForwardConfig general(const ForwardConfig& c) {
  return c.with(c.element, Variant::kGeneral);
}
bool can_split_general(const ForwardConfig& c) {
  return general(c).can_split();
}

// Where a page's boxes would be small, a kernel that can load keys by cp.async; with some page
// sizes it has larger boxes.
int select_kernel_for_pages(ForwardShape shape, std::span<const KernelInstance> table,
                            const ForwardCall& call) {
  const int row = select_kernel(shape, table);
  if (!has_small_boxes(table[row].config, call)) return row;
  shape.split = true;
  const int other = select_kernel(shape, table);
  return other != kNoKernel ? other : row;
}

// Batch-invariant: the head dims, the group, num_splits and the page size decide. Fixed splits take
// the kernel for few queries, whole tiles the one for long sequences.
KernelChoice choose_for_any_batch(const Problem& problem, const ForwardCall& call, int num_sms) {
  const std::span<const KernelInstance> table = table_of(problem);
  ForwardShape shape = shape_of(problem);
  shape.split = problem.num_splits > 1;
  shape.keys = INT64_MAX;
  shape.rows = shape.split ? 1 : INT64_MAX;
  const PackGqa pack = most_packed(problem.group(), shape.split);
  const int row = select_kernel_for_pages(shape, table, call);
  if (!shape.split) return {row, whole_tiles(table[row].config, call, pack, num_sms)};
  return {row, {pack, Scheduler::kFixedSplit, {.num_splits = problem.num_splits}}};
}

// Tiles' rows times the share of the keys that they see, as many as the busiest SM goes through, if
// queries are dense. Equal tiles come in waves. Causal ones, longest first, take as long as the
// longest, which sees all keys, or as all of them over the SMs, which see all but half of as many
// as there are queries.
double most_rows(const ForwardConfig& c, ForwardCall call, bool are_equal, int num_sms) {
  call.varlen = false;  // only keys are: count tiles as if they were not
  const int64_t at_once = int64_t{num_sms} * c.ctas_per_sm;
  const int64_t tiles = num_tiles(c, call, choose_pack(c, call));
  const double rows_at_once = double(c.ctas_per_sm * c.block_m);
  if (are_equal) return double(ceil_div(tiles, at_once)) * rows_at_once;
  const double seen = 1 - 0.5 * double(call.seqlen_q) / double(std::max(call.seqlen_k, 1));
  return std::max(seen * double(tiles) / double(at_once), 1.0) * rows_at_once;
}

// Whether another row's smaller tiles of the same columns occupy the SMs so much better that they
// are done first, though each takes longer for its size. Under a window tiles are neither equal nor
// of known lengths.
bool fills_better(const ForwardConfig& other, const ForwardConfig& c, const ForwardCall& call,
                  int num_sms) {
  // Tiles of 128 rows, at 64 columns for want of a third warpgroup; those of 64 are for few
  // queries.
  const double longer_for_its_size = c.head_dim <= 64 ? 1.25 : 1.1;
  const bool same_columns = other.head_dim == c.head_dim && other.head_dim_v == c.head_dim_v;
  const bool alike = call.tiles_are_alike();
  return same_columns && (alike || call.is_causal()) && !call.lengths_q.varlen &&
         other.consumers() > 1 &&
         most_rows(other, call, alike, num_sms) * longer_for_its_size <
             most_rows(c, call, alike, num_sms);
}

// Whether tiles of 64 rows come in stream-K ranges for two CTAs an SM, and a kernel is to combine
// them. Tiles of 128 rows come in half as many; where queries fill more than a quarter of these,
// that is worth more than products of empty rows cost.
bool leaves_many_splits(const ForwardConfig& c, const ForwardCall& call, const Tiling& tiling,
                        int num_sms) {
  return c.consumers() == 1 && !c.dequantizes() && tiling.scheduler == Scheduler::kStreamK &&
         tiling.split.ctas > num_sms && tiling.pack.rows(call.seqlen_q) > kRowsPerWarpgroup / 2 &&
         !combines_in_kernel(c, call, tiling);
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

// What suits a problem's size.
KernelChoice choose_for_size(const Problem& problem, const ForwardCall& call, int num_sms) {
  const std::span<const KernelInstance> table = table_of(problem);
  const auto tiled = [&](int row) -> KernelChoice {
    return {row, choose_tiling(table[row].config, call, problem.num_splits, num_sms)};
  };
  ForwardShape shape = shape_of(problem);
  const KernelChoice first = tiled(select_kernel_for_pages(shape, table, call));
  const ForwardConfig& c = table[first.row].config;
  if (leaves_many_splits(c, call, first.tiling, num_sms)) {
    const int wider = choose_wider(shape, table, first.row);
    const KernelChoice split = wider != kNoKernel ? tiled(wider) : KernelChoice{};
    if (split.tiling.is_split()) return split;
  }
  if (can_split_general(c)) return first;
  shape.split = true;
  const int other = select_kernel(shape, table);
  if (other != kNoKernel && first.tiling.is_split()) {
    const KernelChoice split = tiled(other);
    if (split.tiling.is_split()) return split;
  }
  if (other != kNoKernel && fills_better(table[other].config, c, call, num_sms)) {
    const ForwardConfig& smaller = table[other].config;
    return {other, whole_tiles(smaller, call, choose_pack(smaller, call), num_sms)};
  }
  if (!first.tiling.is_split()) return first;
  return {first.row, whole_tiles(c, call, choose_pack(c, call), num_sms)};
}

// Whether a kernel that decodes has what it needs: simple sequences, and K and V by the one loader
// that it has.
bool can_always_split(const ForwardConfig& c, const ForwardCall& call, const Tiling& tiling) {
  const bool is_whole = tiling.scheduler == Scheduler::kDirect;
  if (!is_whole && tiling.scheduler != Scheduler::kStreamK) return false;
  if (c.combine() == CombineKind::kLastCta && (is_whole || !combines_in_kernel(c, call, tiling)))
    return false;
  if (!c.is_decode() && call.sequences > kFewSequences) return false;
  if (!split_kv_schedule(c, call, tiling).is_for_decoding()) return false;
  const bool by_tma = c.is_decode() ? fills_stages_by_tma(c, call) : c.dequantizes();
  return by_tma || cp_async_keys(c, call).active;
}

}  // namespace

std::span<const KernelInstance> table_of(const Problem& p) {
  if (p.has_float8()) return kCacheTable;
  return kForwardTable;
}

ForwardShape shape_of(const Problem& p) {
  // A window between two bounds, or a chunk, is what one query sees.
  const MaskRuleOf<int> mask = narrow_mask(p);
  const bool bounded = mask.left != mask.kUnbounded && mask.right != mask.kUnbounded;
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

int select_kernel(const ForwardShape& shape, std::span<const KernelInstance> table) {
  int best = kNoKernel;
  for (int row = 0; row < int(table.size()); ++row) {
    const auto& [config, max_keys, max_rows, why] = table[row];
    if (config.head_dim < shape.head_dim || config.head_dim_v < shape.head_dim_v) continue;
    if (shape.single_rows && !copies_single_rows(config)) continue;
    if (shape.any_rows && !consumer_tuning(general(config)).stores_any_rows) continue;
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

int select_kernel(const ForwardShape& shape, std::span<const KernelInstance> table,
                  Variant variant) {
  const auto has_it = [&](const KernelInstance& row) { return row.config.variant == variant; };
  const auto first = std::ranges::find_if(table, has_it);
  const auto rows = std::span(first, std::find_if_not(first, table.end(), has_it));
  const int row = select_kernel(shape, rows);
  return row == kNoKernel ? kNoKernel : int(first - table.begin()) + row;
}

int select_dropout_kernel(const Problem& problem) {
  const ForwardShape shape = shape_of(problem);
  const int row = select_kernel(shape, kDropoutTable, variant_of(problem));
  if (row != kNoKernel || variant_of(problem) != Variant::kDense) return row;
  return select_kernel(shape, kDropoutTable, Variant::kGeneral);
}

int select_continued_kernel(const Problem& problem) {
  Problem p = problem;  // that O may be float32 makes no kernel general here
  p.o.dtype = p.dtype;
  p.num_splits = 0;
  const bool has_others = p.softcap != 0.0f || p.has_sink || p.dropout.on() || p.block_mask.on ||
                          p.score != nullptr || p.has_float8() || p.key_places.elsewhere ||
                          p.batch_invariant || !has_whole_copies(p);
  if (has_others || p.lengths_q.max * p.group() <= kFewRows) return kNoKernel;
  const Variant variant = variant_of(p);
  // Without a partial result other kernels have more tiles to choose from.
  const bool is_long = variant == Variant::kDense && p.lengths_k.max >= kLongKeys;
  if (!p.partial.on && (problem.o.dtype != DType::float32 || !is_long)) return kNoKernel;
  ForwardShape shape = shape_of(p);
  shape.rows = INT64_MAX;
  return select_kernel(shape, kContinuedTable, variant);
}

bool has_mask_kernel(const Problem& problem) {
  return select_kernel(shape_of(problem), kMaskTable, Variant::kDense) != kNoKernel;
}

int select_mask_kernel(const Problem& problem, const ForwardCall& call, int num_sms) {
  const int row = select_kernel(shape_of(problem), kMaskTable, Variant::kDense);
  const ForwardConfig& c = kMaskTable[size_t(row)].config;
  if (num_tiles(c, call, PackGqa{}) > int64_t{num_sms} * c.ctas_per_sm) return row;
  const auto has_an_sm = [&](const KernelInstance& other) {
    return other.config.head_dim == c.head_dim && other.config.ctas_per_sm == 1;
  };
  return int(std::ranges::find_if(kMaskTable, has_an_sm) - kMaskTable.begin());
}

KernelChoice select_kernel_and_split(const Problem& problem, const ForwardCall& call, int num_sms) {
  if (problem.batch_invariant) return choose_for_any_batch(problem, call, num_sms);
  KernelChoice choice = choose_for_size(problem, call, num_sms);
  const ForwardConfig config = general(table_of(problem)[size_t(choice.row)].config);
  if (!choice.tiling.is_split() && fits_one_wave(config, call, choice.tiling.pack, num_sms)) {
    choice.tiling.scheduler = Scheduler::kDirect;
  }
  return choice;
}

bool always_splits(const ForwardConfig& config, const Problem& p, const ForwardCall& call,
                   const Tiling& tiling) {
  return p.softcap == 0.0f && !has_other_rows(p) && can_always_split(config, call, tiling);
}

KernelChoice select_stream_k(const Problem& problem, const ForwardCall& call,
                             const KernelChoice& choice, int num_sms) {
  const size_t row = stream_k_row(table_of(problem)[size_t(choice.row)].config);
  if (row == kStreamKTable.size()) return {};
  const ForwardConfig& c = kStreamKTable[row].config;
  Tiling tiling = choice.tiling;
  if (!tiling.is_split()) {
    if (problem.batch_invariant || !call.varlen) return {};
    tiling = {choose_split_pack(c, call, num_sms), Scheduler::kDirect, {}};
    if (num_split_tiles(c, call, tiling.pack) > kFewWaves * num_sms * c.ctas_per_sm) return {};
  }
  tiling.split.opener_combines =
      tiling.is_split() && most_splits(c, call, tiling) <= kMostSplitsToOpener;
  return always_splits(c, problem, call, tiling) ? KernelChoice{int(row), tiling} : KernelChoice{};
}

}  // namespace fa3::hopper
