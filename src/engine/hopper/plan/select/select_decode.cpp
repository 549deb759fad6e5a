// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/config/decode_shape.h"
#include "engine/hopper/plan/select/select.h"

#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/select/choose_split.h"

namespace fa3::hopper {
namespace {

// Measured on an H200 (docs/lab/decoding.md). Half of the SMs read as fast as memory gives,
// if TMA loads rows that lie side by side: all tiles of one sequence at once. They do not
// dequantize e4m3 as fast, nor does cp.async load as fast: then all SMs read what is much.
constexpr int64_t kLeastKeys = 512;
int64_t many_bytes(const Kernel& c) {  // of keys and values
  return int64_t{!c.dequantizes() ? 48 : decode_shape(c).overlaps_next_call() ? 32 : 16} << 20;
}
constexpr int64_t kLargestCluster = 16, kLargeCluster = 8, kSmallCluster = 2;
constexpr int64_t kMostSplits = 8;  // of a tile
// Sixteen CTAs read one tile alone up to twice as many keys, two tiles up to three times as many:
// with more keys, splits on all of those SMs and their combine are sooner done.
constexpr int64_t kKeysAlone = 2048;
// Stream-K kernels read more 16-bit keys and values in as little time, where tiles are many,
// columns are more than 128 or sequences are several.
constexpr int64_t kFewTiles = 8, kMostTiles = 32;
constexpr int64_t kMostBytes = int64_t{160} << 20;

// The kernels of a tile: for one sequence, and for several, if there is one.
struct DecodeRows {
  const Row* single = nullptr;
  const Row* several = nullptr;
};

// The first tile with enough columns and rows.
DecodeRows rows_for(const Problem& p) {
  const int64_t columns = std::max(p.head_dim, p.head_dim_v);
  const int64_t rows = most_packed(p.group(), true).rows(p.lengths_q.max);
  for (const Row& row : kForward) {
    const Kernel& c = row.kernel;
    if (!c.is_single_sequence() || c.shape.head_dim < columns || c.shape.block_m < rows) continue;
    if (c.dequantizes() != p.has_float8() || row.built != (p.score == nullptr)) continue;
    const Row* const next = &row + 1;
    const bool has_several = next->kernel.tiles == Tiles::kDecode &&
                             next->kernel.shape.head_dim == c.shape.head_dim &&
                             next->kernel.shape.block_m == c.shape.block_m;
    return {&row, has_several ? next : nullptr};
  }
  return {};
}

int64_t key_bytes(const Kernel& c, const ForwardCall& call) {
  const int64_t row_bytes = (call.k.columns + call.v.columns) * bytes_of(c.types().stored);
  return call.sequences * call.seqlen_k * call.k.heads * row_bytes;
}

int64_t power_below(int64_t n) {
  return int64_t(std::bit_floor(uint64_t(n)));
}

// Clusters for each tile of one sequence; is_split() false: there are too many tiles, or too few
// keys.
Tiling split_single_sequence(const Kernel& c, const ForwardCall& call, int num_sms) {
  const PackGqa pack = most_packed(call.heads_per_kv_head, true);
  const int64_t tiles = num_split_tiles(c, call, pack), keys = call.seqlen_k;
  const int64_t bytes = key_bytes(c, call), all = power_below(num_sms);
  const bool by_cp_async = cp_async_keys(c, call).active;
  const bool is_much = (c.dequantizes() || by_cp_async) && bytes >= many_bytes(c) &&
                       all <= tiles * kSmallCluster * kMostSplits;
  const int64_t ctas = is_much ? all : all / 2;
  if (keys < kLeastKeys || tiles > ctas) return {};
  const bool are_many = tiles > kFewTiles || by_cp_async || c.shape.head_dim_v > 128;
  if (!c.dequantizes() && (tiles > kMostTiles || (are_many && bytes > kMostBytes))) return {};
  const int64_t busy = int64_t(std::bit_ceil(uint64_t(ceil_div(keys, c.shape.block_n))));
  int64_t ctas_of_tile = std::min(power_below(ctas / tiles), busy);
  int64_t cluster = std::min(ctas_of_tile, is_much ? kSmallCluster : kLargeCluster);
  // Where two CTAs share an SM, any group of them has room for sixteen.
  const bool are_short = keys <= kKeysAlone * (1 + tiles);
  if (decode_shape(c).overlaps_next_call() && !is_much && ctas_of_tile >= kLargestCluster &&
      (are_short || ctas_of_tile == kLargestCluster)) {
    cluster = ctas_of_tile = kLargestCluster;
  }
  return {pack,
          Scheduler::kStreamK,
          {.ctas = int(tiles * ctas_of_tile / cluster),
           .cluster_log2 = std::countr_zero(uint64_t(cluster))}};
}

}  // namespace

Choice select_decode(const Request& r) {
  const Needs not_served{Need::kE4m3,    Need::kBlockMask, Need::kDropout,
                         Need::kPartial, Need::kAnySplits, Need::kBatchInvariant};
  if (!(r.needs & not_served).empty() || r.call.sequences == 0) return {};
  const auto [single, several] = rows_for(r.problem);
  if (single == nullptr) return {};
  if (r.call.sequences == 1) {
    const Tiling tiling = split_single_sequence(single->kernel, r.call, r.num_sms);
    if (tiling.is_split()) {
      return can_decode(single->kernel, r, tiling) ? Choice{single, tiling} : Choice{};
    }
  }
  if (several == nullptr) return {};
  const Kernel& c = several->kernel;
  // No stream-K kernel takes a score function.
  const bool has_other = r.problem.score == nullptr && !c.dequantizes();
  const bool reads_much = r.call.sequences == 1 || key_bytes(c, r.call) > kMostBytes;
  if (has_other && reads_much) return {};
  const Tiling tiling = choose_split(c, r.call, r.problem.num_splits, r.num_sms);
  return can_decode(c, r, tiling) ? Choice{several, tiling} : Choice{};
}

}  // namespace fa3::hopper
