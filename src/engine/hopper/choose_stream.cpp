// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/choose_stream.h"

#include <algorithm>
#include <bit>

#include "core/ceil_div.h"
#include "engine/hopper/choose_tiles.h"
#include "engine/hopper/count_tiles.h"
#include "engine/hopper/stream/compiled_stream.h"

namespace fa3::hopper {
namespace {

// Of one sequence, measured on an H200 (docs/performance-hopper.md). Clusters of eight leave few pieces to
// merge or none, but find room on few more than half of the multiprocessors, which read little slower than
// all of them as long as there is little to read.
constexpr int64_t kLeastKeys = 512;
constexpr int64_t kManyBytes = int64_t{48} << 20;  // of keys and values
// Ordinary kernels read more in as little time, or more tiles.
constexpr int64_t kMostBytes = int64_t{192} << 20, kMostTiles = 16;
constexpr int64_t kLargeCluster = 8, kSmallCluster = 2, kMostParts = 8;

int row_for(const Problem& problem) {
  const int64_t columns = std::max(problem.head_dim, problem.head_dim_v);
  const int64_t rows = most_packed(problem.group(), true).rows(problem.lengths_q.max);
  for (int row = 0; row < int(kStreamTable.size()); ++row) {
    const ForwardConfig& c = kStreamTable[size_t(row)].config;
    const bool fits = c.head_dim >= columns && c.block_m >= rows;
    if (fits && c.widens() == problem.has_e4m3()) return row;
  }
  return kNoRow;
}

// The parts of each tile of one sequence; false: there are too many tiles, or too few keys.
bool cut_into_parts(const ForwardConfig& c, int multiprocessors, ForwardLaunch* launch) {
  launch->pack = most_packed(launch->heads_per_kv_head, true);
  const int64_t all = int64_t(std::bit_floor(unsigned(multiprocessors)));
  const int64_t tiles = num_cut_tiles(c, *launch), keys = launch->seqlen_k;
  const int64_t row_bytes = (launch->k.columns + launch->v.columns) * bytes_of(c.stored());
  const int64_t bytes = keys * launch->k.heads * row_bytes;
  if (!c.widens() && (bytes > kMostBytes || tiles > kMostTiles)) return false;
  const bool is_much = bytes >= kManyBytes && all <= tiles * kSmallCluster * kMostParts;
  const int64_t blocks = is_much ? all : all / 2;
  if (keys < kLeastKeys || tiles > blocks) return false;
  const auto power = [](int64_t n) { return int64_t(std::bit_floor(uint64_t(n))); };
  const int64_t of_tile = power(std::min(blocks / tiles, ceil_div(keys, c.block_n)));
  const int64_t cluster = std::min(of_tile, is_much ? kSmallCluster : kLargeCluster);
  launch->cut = {.parts = KeyCut::kRuns,
                 .blocks = int(tiles * of_tile / cluster),
                 .cluster_log2 = std::countr_zero(uint64_t(cluster))};
  return true;
}

}  // namespace

StreamChoice choose_stream(const Problem& problem, int multiprocessors, ForwardLaunch* launch) {
  const int row = row_for(problem);
  if (row == kNoRow || problem.batch_invariant || problem.num_splits != 0) return {};
  const ForwardConfig& c = kStreamTable[size_t(row)].config;
  ForwardLaunch cut = *launch;
  Variant variant = Variant::kStreamTile;
  if (cut.sequences != 1 || !cut_into_parts(c, multiprocessors, &cut)) {
    if (!c.widens()) return {};  // ordinary kernels are as fast
    variant = Variant::kStream;
    choose_cut(c, problem.num_splits, multiprocessors, &cut);
  }
  if (!decodes(c.with(c.element, variant), problem, cut)) return {};
  *launch = cut;
  return {row, variant};
}

}  // namespace fa3::hopper
