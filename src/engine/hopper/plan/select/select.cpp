// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select/select.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {
namespace {

// Maximum number of splits that the opening CTA combines itself, if lengths are equal. Otherwise a
// long tile has more splits, and one SM loads them all: with 8 sequences for 16 ranges each a call
// took 2 us longer than with a combine kernel (docs/lab/decoding.md).
constexpr int64_t kMostSplitsToOpener = 2;

struct TiledCall {
  Tile tile;
  Tiling tiling;
};

// A tile that can split, and that suits the rows of a call, whatever its most keys are.
Tile first_that_splits(const Request& r, int64_t rows) {
  return first_tile(r, [&](const Tile& tile) {
    return tile.kernel().can_split() && rows <= tile.last().limits.most_rows;
  });
}

// Where a page's boxes would be small, a tile that can load keys by cp.async instead of the first
// that suits a call; with some page sizes it has larger boxes.
Tile first_for_pages(const Tile& first, const Request& r) {
  if (!has_small_boxes(first.kernel(), r.call)) return first;
  const Tile other = first_that_splits(r, r.sizes.rows);
  return other ? other : first;
}

TiledCall tiled(const Tile& tile, const Request& r) {
  return {tile, choose_tiling(tile.kernel(), r.call, r.problem.num_splits, r.num_sms)};
}

// The head dims, the group, num_splits and the page size alone decide.
TiledCall choose_for_any_batch(const Tile& first, const Request& r) {
  const bool splits = r.problem.num_splits > 1;
  const Tile tile = splits ? first_that_splits(r, r.sizes.rows) : first_for_pages(first, r);
  const PackGqa pack = most_packed(r.call.heads_per_kv_head, splits);
  if (!splits) return {tile, whole_tiles(tile.kernel(), r.call, pack, r.num_sms)};
  return {tile, {pack, Scheduler::kFixedSplit, {.num_splits = r.problem.num_splits}}};
}

// Tiles' rows times the share of the keys that they see, as many as the busiest SM goes through, if
// queries are dense. Equal tiles come in waves. Causal ones, longest first, take as long as the
// longest, which sees all keys, or as all of them over the SMs, which see all but half of as many
// as there are queries.
double busiest_rows(const Kernel& c, ForwardCall call, bool are_equal, int num_sms) {
  call.varlen = false;  // only keys are: count tiles as if they were not
  const int64_t at_once = int64_t{num_sms} * c.shape.ctas_per_sm;
  const int64_t tiles = num_tiles(c, call, choose_pack(c, call));
  const double rows_at_once = double(c.shape.ctas_per_sm * c.shape.block_m);
  if (are_equal) return double(ceil_div(tiles, at_once)) * rows_at_once;
  const double seen = 1 - 0.5 * double(call.seqlen_q) / double(std::max(call.seqlen_k, 1));
  return std::max(seen * double(tiles) / double(at_once), 1.0) * rows_at_once;
}

bool have_same_columns(const Kernel& a, const Kernel& b) {
  return a.shape.head_dim == b.shape.head_dim && a.shape.head_dim_v == b.shape.head_dim_v;
}

// Whether a smaller tile of the same columns occupies the SMs so much better that it is done first,
// though each takes longer for its size. Under a window tiles are neither equal nor of known
// lengths.
bool fills_better(const Tile& other, const Tile& tile, const Request& r) {
  const Kernel& c = other.kernel();
  const bool alike = r.call.tiles_are_alike();
  return have_same_columns(c, tile.kernel()) && (alike || r.call.is_causal()) &&
         !r.call.lengths_q.varlen && c.consumers() > 1 &&
         busiest_rows(c, r.call, alike, r.num_sms) * other.last().row_cost <
             busiest_rows(tile.kernel(), r.call, alike, r.num_sms);
}

// Whether tiles of 64 rows come in stream-K ranges for two CTAs an SM, and a kernel is to combine
// them. Tiles of 128 rows come in half as many; where queries fill more than a quarter of these,
// that is worth more than products of empty rows cost.
bool prefers_wider_tile(const TiledCall& tiled, const Request& r) {
  const auto& [tile, tiling] = tiled;
  return tile.kernel().consumers() == 1 && !tile.kernel().dequantizes() &&
         tiling.scheduler == Scheduler::kStreamK && tiling.split.ctas > r.num_sms &&
         tiling.pack.rows(r.call.seqlen_q) > kRowsPerWarpgroup / 2 &&
         !combines_in_kernel(tile.kernel(), r.call, tiling);
}

TiledCall choose_for_size(const Tile& tile, const Request& r) {
  const TiledCall first = tiled(first_for_pages(tile, r), r);
  const Kernel& c = first.tile.kernel();
  if (prefers_wider_tile(first, r)) {
    const Tile wider = first_that_splits(r, INT64_MAX);
    if (wider && have_same_columns(wider.kernel(), c)) {
      const TiledCall split = tiled(wider, r);
      if (split.tiling.is_split()) return split;
    }
  }
  if (c.can_split()) return first;
  const Tile other = first_that_splits(r, r.sizes.rows);
  if (other && first.tiling.is_split()) {
    const TiledCall split = tiled(other, r);
    if (split.tiling.is_split()) return split;
  }
  const Tile& best = other && fills_better(other, first.tile, r) ? other : first.tile;
  if (best.begin == first.tile.begin && !first.tiling.is_split()) return first;
  return {best, whole_tiles(best.kernel(), r.call, choose_pack(best.kernel(), r.call), r.num_sms)};
}

TiledCall choose_tile(const Tile& first, const Request& r) {
  if (r.needs.has(Need::kBatchInvariant)) return choose_for_any_batch(first, r);
  TiledCall best = choose_for_size(first, r);
  if (!best.tiling.is_split() &&
      fits_one_wave(best.tile.kernel(), r.call, best.tiling.pack, r.num_sms)) {
    best.tiling.scheduler = Scheduler::kDirect;
  }
  return best;
}

// How the form that only decodes would tile a call; whole tiles may hold other heads there.
Tiling decoding_tiling(const Kernel& c, const TiledCall& tiled, const Request& r) {
  Tiling tiling = tiled.tiling;
  if (!tiling.is_split()) {
    if (r.needs.has(Need::kBatchInvariant) || !r.call.varlen) return {};
    tiling = {choose_split_pack(c, r.call, r.num_sms), Scheduler::kDirect, {}};
    if (num_split_tiles(c, r.call, tiling.pack) > kFewWaves * r.num_sms * c.shape.ctas_per_sm)
      return {};
  }
  tiling.split.opener_combines =
      tiling.is_split() && most_splits(c, r.call, tiling) <= kMostSplitsToOpener;
  return tiling;
}

Choice choose_form(const TiledCall& tiled, const Request& r) {
  if (const Row* const row = tiled.tile.stream_k()) {
    const Tiling tiling = decoding_tiling(row->kernel, tiled, r);
    if (tiling.finds_own_tiles() && can_decode(row->kernel, r, tiling)) return {row, tiling};
  }
  Needs more;
  more.set(Need::kFindsTiles, tiled.tiling.finds_own_tiles());
  more.set(Need::kFixedSplits, tiled.tiling.scheduler == Scheduler::kFixedSplit);
  return {form_of(tiled.tile, r, more), tiled.tiling};
}

// Kernels that neither split tiles nor, but for those of e4m3, pack heads.
bool has_whole_tiles(const Tile& tile) {
  const Kernel& c = tile.kernel();
  return c.e4m3() || c.continued() || c.dropout() || c.block_mask() || !tile.last().built;
}

}  // namespace

PackGqa pack_of_whole_tiles(const Kernel& c, const Request& r) {
  const Descales<const float>& q = r.problem.q_quantization.descale;
  const bool shared =
      q.data == nullptr || q.head_stride == 0 || q.heads_per_scale % r.call.heads_per_kv_head == 0;
  return c.e4m3() && shared ? choose_pack(c, r.call) : PackGqa{};
}

bool can_decode(const Kernel& c, const Request& r, const Tiling& tiling) {
  const Needs not_decoded{Need::kSoftcap, Need::kFloat32Out, Need::kRowsNot8};
  if (!(r.needs & not_decoded).empty()) return false;
  const bool is_whole = tiling.scheduler == Scheduler::kDirect;
  if (!is_whole && tiling.scheduler != Scheduler::kStreamK) return false;
  if (c.combine() == CombineKind::kLastCta &&
      (is_whole || !combines_in_kernel(c, r.call, tiling))) {
    return false;
  }
  if (!c.is_decode() && r.call.sequences > kFewSequences) return false;
  if (!split_kv_schedule(c, r.call, tiling).is_for_decoding()) return false;
  const bool by_tma = c.is_decode() ? fills_stages_by_tma(c, r.call) : c.dequantizes();
  return by_tma || cp_async_keys(c, r.call).active;
}

Choice select(const Request& r) {
  const Choice decode = select_decode(r);
  return decode.row != nullptr ? decode : select_tiles(r);
}

Choice select_tiles(const Request& r) {
  const Tile first = first_that_suits(r);
  if (!first) return {};
  if (has_whole_tiles(first)) {
    const Row* const row = form_of(first, r);
    const PackGqa pack = pack_of_whole_tiles(row->kernel, r);
    return {row, whole_tiles(row->kernel, r.call, pack, r.num_sms)};
  }
  return choose_form(choose_tile(first, r), r);
}

}  // namespace fa3::hopper
