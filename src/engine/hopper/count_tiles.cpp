// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/count_tiles.h"

#include <algorithm>

#include "core/ceil_div.h"

namespace fa3::hopper {
namespace {

// A tail of this many waves of tiles evens out the multiprocessors: more for longer sequences, whose
// longest tiles are longer and whose keys need less memory bandwidth for their use.
constexpr int64_t kTailWavesPerMBlock = 16;
constexpr int64_t kMinTailWaves = 2;
constexpr int64_t kMaxTailWaves = 8;

int64_t num_m_blocks(const ForwardConfig& c, const ForwardLaunch& launch, HeadPack pack) {
  return ceil_div(pack.rows(int64_t{launch.seqlen_q}), c.block_m);
}

// Whether the merge looks at tiles one by one, or at runs, which cut a tile each at most.
bool told_by_tile(const ForwardConfig& c, const ForwardLaunch& launch) {
  if (launch.cut.parts != KeyCut::kRuns) return true;
  return !launch.lengths_q.ragged && num_cut_tiles(c, launch) <= launch.cut.blocks;
}

// How many tiles at the end go longest first, whatever their head.
int64_t tail_tiles(const ForwardConfig& c, const ForwardLaunch& launch, int multiprocessors) {
  if (launch.mask.hides_nothing()) return 0;
  const int64_t waves = num_m_blocks(c, launch, launch.pack) / kTailWavesPerMBlock;
  return std::clamp(waves, kMinTailWaves, kMaxTailWaves) * multiprocessors;
}

}  // namespace

int64_t row_tiles(const ForwardConfig& c, const ForwardLaunch& launch, HeadPack pack) {
  if (!launch.ragged) return num_m_blocks(c, launch, pack) * launch.q.batches;
  return ceil_div(pack.rows(launch.q.rows * launch.q.batches), c.block_m) + launch.sequences + 1;
}

int64_t num_tiles(const ForwardConfig& c, const ForwardLaunch& launch, HeadPack pack) {
  return row_tiles(c, launch, pack) * (launch.q.heads / pack.heads());
}

int64_t num_packs(const ForwardLaunch& launch) {
  return launch.q.heads / launch.pack.heads();
}

int64_t most_m_blocks(const ForwardConfig& c, const ForwardLaunch& launch) {
  return std::max<int64_t>(1, num_m_blocks(c, launch, launch.pack));
}

int64_t num_cut_tiles(const ForwardConfig& c, const ForwardLaunch& launch) {
  return launch.sequences * most_m_blocks(c, launch) * num_packs(launch);
}

int64_t num_cuts(const ForwardConfig& c, const ForwardLaunch& launch) {
  return told_by_tile(c, launch) ? num_cut_tiles(c, launch) : launch.cut.blocks;
}

// A run has at most two pieces of cut tiles.
int64_t num_slots(const ForwardConfig& c, const ForwardLaunch& launch) {
  const KeyCut& cut = launch.cut;
  return cut.parts == KeyCut::kRuns ? int64_t{2} * cut.blocks
                                    : num_cut_tiles(c, launch) * cut.parts;
}

int64_t most_pieces(const ForwardConfig& c, const ForwardLaunch& launch) {
  const KeyCut& cut = launch.cut;
  if (cut.parts != KeyCut::kRuns) return cut.parts;
  return ceil_div(cut.blocks, std::max<int64_t>(1, num_cut_tiles(c, launch))) + 1;
}

TileOrder tile_order(const ForwardConfig& c, const ForwardLaunch& launch, int multiprocessors) {
  const int64_t packs = num_packs(launch);
  if (launch.ragged) return {int(row_tiles(c, launch, launch.pack)), int(packs), 1, 0};
  const int64_t m_blocks = num_m_blocks(c, launch, launch.pack);
  const int64_t tail = ceil_div(tail_tiles(c, launch, multiprocessors), m_blocks);
  return {int(m_blocks), int(packs), int(launch.q.batches),
          int(std::min(packs * launch.q.batches, tail))};
}

SequenceList sequence_list(const ForwardConfig& c, const ForwardLaunch& launch,
                           int multiprocessors) {
  return {.lengths_q = launch.lengths_q,
          .lengths_k = launch.lengths_k,
          .batch = int(launch.sequences),
          .block_m = c.block_m,
          .pack = launch.pack,
          .num_packs = int(num_packs(launch)),
          .tail_tiles = int(tail_tiles(c, launch, multiprocessors)),
          .capacity = int(row_tiles(c, launch, launch.pack)),
          .places = launch.places};
}

KeySplit key_split(const ForwardConfig& c, const ForwardLaunch& launch) {
  KeySplit split{.sequences = sequence_list(c, launch, 0),
                 .mask = launch.mask,
                 .block_n = c.block_n,
                 .parts = launch.cut.parts,
                 .most_m_blocks = int(most_m_blocks(c, launch)),
                 .rows_log2 = launch.cut.rows_log2,
                 .told_by_tile = told_by_tile(c, launch)};
  split.simple = split.is_simple();
  return split;
}

}  // namespace fa3::hopper
