// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select_decode.h"

#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
#include "engine/hopper/instances/decode_table.h"
#include "engine/hopper/launch/launch_forward.h"
#include "engine/hopper/plan/choose_split.h"
#include "engine/hopper/plan/count_tiles.h"

namespace fa3::hopper {
namespace {

// Measured on an H200 (docs/lab/decoding.md). Half of the SMs read as fast as memory gives,
// if TMA reads what lies side by side: all tiles of one sequence at once. Of e4m3 they do not
// dequantize as fast, and threads do not copy as fast: then all read what is much.
constexpr int64_t kLeastKeys = 512;
int64_t many_bytes(const ForwardConfig& c) {  // of keys and values
  return int64_t{!c.dequantizes() ? 48 : c.overlaps_next_call() ? 32 : 16} << 20;
}
constexpr int64_t kLargestCluster = 16, kLargeCluster = 8, kSmallCluster = 2, kMostParts = 8;
// Sixteen CTAs read one tile alone up to twice as many keys, two tiles up to three times as many:
// of more keys, parts on all of those SMs and their combine are sooner done.
constexpr int64_t kKeysAlone = 2048;
// Online kernels read more 16-bit keys and values in as little time, where tiles are many, columns
// are more than 128 or sequences are several.
constexpr int64_t kFewTiles = 8, kMostTiles = 32;
constexpr int64_t kMostBytes = int64_t{160} << 20;

int row_for(const Problem& problem) {
  const int64_t columns = std::max(problem.head_dim, problem.head_dim_v);
  const int64_t rows = most_packed(problem.group(), true).rows(problem.lengths_q.max);
  for (int row = 0; row < int(kDecodeTable.size()); ++row) {
    const ForwardConfig& c = kDecodeTable[size_t(row)].config;
    const bool fits = c.head_dim >= columns && c.block_m >= rows;
    if (fits && c.dequantizes() == problem.has_e4m3()) return row;
  }
  return kNoKernel;
}

int64_t key_bytes(const ForwardConfig& c, const ForwardLaunch& launch) {
  const int64_t row_bytes = (launch.k.columns + launch.v.columns) * bytes_of(c.stored());
  return int64_t{launch.sequences} * launch.seqlen_k * launch.k.heads * row_bytes;
}

int64_t power_below(int64_t n) {
  return int64_t(std::bit_floor(uint64_t(n)));
}

// The parts of each tile of one sequence; false: there are too many tiles, or too few keys.
bool split_single_sequence(const ForwardConfig& c, int num_sms, ForwardLaunch* launch) {
  launch->pack = most_packed(launch->heads_per_kv_head, true);
  const int64_t tiles = num_split_tiles(c, *launch), keys = launch->seqlen_k;
  const int64_t bytes = key_bytes(c, *launch), all = power_below(num_sms);
  const bool by_cp_async = uses_cp_async(c, *launch);
  const bool is_much = (c.dequantizes() || by_cp_async) && bytes >= many_bytes(c) &&
                       all <= tiles * kSmallCluster * kMostParts;
  const int64_t blocks = is_much ? all : all / 2;
  if (keys < kLeastKeys || tiles > blocks) return false;
  const bool are_many = tiles > kFewTiles || by_cp_async || c.head_dim_v > 128;
  if (!c.dequantizes() && (tiles > kMostTiles || (are_many && bytes > kMostBytes))) return false;
  const int64_t busy = int64_t(std::bit_ceil(uint64_t(ceil_div(keys, c.block_n))));
  int64_t of_tile = std::min(power_below(blocks / tiles), busy);
  int64_t cluster = std::min(of_tile, is_much ? kSmallCluster : kLargeCluster);
  // Where two CTAs share an SM, any group of them has room for sixteen.
  const bool are_short = keys <= kKeysAlone * (1 + tiles);
  if (c.overlaps_next_call() && !is_much && of_tile >= kLargestCluster &&
      (are_short || of_tile == kLargestCluster)) {
    cluster = of_tile = kLargestCluster;
  }
  launch->split = {.num_splits = SplitKv::kStreamK,
                   .ctas = int(tiles * of_tile / cluster),
                   .cluster_log2 = std::countr_zero(uint64_t(cluster))};
  return true;
}

}  // namespace

DecodeChoice select_decode(const Problem& problem, int num_sms, ForwardLaunch* launch) {
  const int row = row_for(problem);
  if (row == kNoKernel || problem.batch_invariant || problem.num_splits != 0) return {};
  if (launch->sequences == 0) return {};
  const ForwardConfig& any = kDecodeTable[size_t(row)].config;
  ForwardLaunch split = *launch;
  Variant variant = Variant::kDecodeSingle;
  if (split.sequences != 1 ||
      !split_single_sequence(any.with(any.element, variant), num_sms, &split)) {
    if (split.sequences == 1 && !any.dequantizes()) return {};
    if (!any.dequantizes() && key_bytes(any, split) > kMostBytes) return {};
    if (any.kv_stages == 0) return {};
    variant = Variant::kDecode;
    choose_split(any.with(any.element, variant), problem.num_splits, num_sms, &split);
  }
  if (!always_splits(any.with(any.element, variant), problem, split)) return {};
  *launch = split;
  return {row, variant};
}

}  // namespace fa3::hopper
