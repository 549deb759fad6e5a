// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/count_tiles.h"

#include <algorithm>

#include "core/ceil_div.h"

namespace fa3::hopper {
namespace {

// A tail of this many waves of tiles evens out the SMs: more for longer sequences, whose
// longest tiles are longer and whose keys need less memory bandwidth for their use.
constexpr int64_t kTailWavesPerMBlock = 16;
constexpr int64_t kMinTailWaves = 2;
constexpr int64_t kMaxTailWaves = 8;

int64_t num_m_blocks(const ForwardConfig& c, const ForwardLaunch& launch, PackGqa pack) {
  return ceil_div(pack.rows(int64_t{launch.seqlen_q}), c.block_m);
}

// Whether the combine looks at tiles one by one, or at runs, which split a tile each at most.
bool combine_by_tile(const ForwardConfig& c, const ForwardLaunch& launch) {
  if (launch.split.num_splits != SplitKv::kStreamK) return true;
  return !launch.lengths_q.varlen && num_split_tiles(c, launch) <= launch.split.ctas;
}

// How many tiles at the end go longest first, whatever their head.
int64_t tail_tiles(const ForwardConfig& c, const ForwardLaunch& launch, int num_sms) {
  if (launch.mask.hides_nothing()) return 0;
  const int64_t waves = num_m_blocks(c, launch, launch.pack) / kTailWavesPerMBlock;
  return std::clamp(waves, kMinTailWaves, kMaxTailWaves) * num_sms;
}

}  // namespace

int64_t row_tiles(const ForwardConfig& c, const ForwardLaunch& launch, PackGqa pack) {
  if (!launch.varlen) return num_m_blocks(c, launch, pack) * launch.q.batches;
  return ceil_div(pack.rows(launch.q.rows * launch.q.batches), c.block_m) + launch.sequences + 1;
}

int64_t num_tiles(const ForwardConfig& c, const ForwardLaunch& launch, PackGqa pack) {
  return row_tiles(c, launch, pack) * (launch.q.heads / pack.heads());
}

int64_t num_packs(const ForwardLaunch& launch) {
  return launch.q.heads / launch.pack.heads();
}

int64_t most_m_blocks(const ForwardConfig& c, const ForwardLaunch& launch) {
  return std::max<int64_t>(1, num_m_blocks(c, launch, launch.pack));
}

int64_t num_split_tiles(const ForwardConfig& c, const ForwardLaunch& launch) {
  return launch.sequences * most_m_blocks(c, launch) * num_packs(launch);
}

int64_t num_combines(const ForwardConfig& c, const ForwardLaunch& launch) {
  return combine_by_tile(c, launch) ? num_split_tiles(c, launch) : launch.split.ctas;
}

// A range has at most two splits of split tiles.
int64_t num_partials(const ForwardConfig& c, const ForwardLaunch& launch) {
  const SplitKv& split = launch.split;
  return split.num_splits == SplitKv::kStreamK ? int64_t{2} * split.ctas
                                               : num_split_tiles(c, launch) * split.num_splits;
}

int64_t most_splits(const ForwardConfig& c, const ForwardLaunch& launch) {
  const SplitKv& split = launch.split;
  if (split.num_splits != SplitKv::kStreamK) return split.num_splits;
  return ceil_div(split.ctas, std::max<int64_t>(1, num_split_tiles(c, launch))) + 1;
}

TileOrder tile_order(const ForwardConfig& c, const ForwardLaunch& launch, int num_sms) {
  const int64_t packs = num_packs(launch);
  if (launch.varlen) return {int(row_tiles(c, launch, launch.pack)), int(packs), 1, 0};
  const int64_t m_blocks = num_m_blocks(c, launch, launch.pack);
  const int64_t tail = ceil_div(tail_tiles(c, launch, num_sms), m_blocks);
  return {int(m_blocks), int(packs), int(launch.q.batches),
          int(std::min(packs * launch.q.batches, tail))};
}

VarlenMetadata varlen_metadata(const ForwardConfig& c, const ForwardLaunch& launch, int num_sms) {
  return {.lengths_q = launch.lengths_q,
          .lengths_k = launch.lengths_k,
          .batch = int(launch.sequences),
          .block_m = c.block_m,
          .pack = launch.pack,
          .num_packs = int(num_packs(launch)),
          .tail_tiles = int(tail_tiles(c, launch, num_sms)),
          .capacity = int(row_tiles(c, launch, launch.pack)),
          .places = launch.places};
}

SplitKvSchedule split_kv_schedule(const ForwardConfig& c, const ForwardLaunch& launch) {
  SplitKvSchedule schedule{.sequences = varlen_metadata(c, launch, 0),
                           .mask = launch.mask,
                           .block_n = c.block_n,
                           .num_splits = launch.split.num_splits,
                           .most_m_blocks = int(most_m_blocks(c, launch)),
                           .groups_log2 = launch.split.groups_log2,
                           .combine_by_tile = combine_by_tile(c, launch)};
  schedule.simple = schedule.is_simple();
  return schedule;
}

}  // namespace fa3::hopper
