// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/count_tiles.h"

#include <algorithm>

#include "core/ceil_div.h"
#include "core/workspace.h"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {
namespace {

// A tail of this many waves of tiles evens out the SMs. Longer sequences take more: their longest
// tiles are longer, and their keys need less memory bandwidth for their use.
constexpr int64_t kTailWavesPerMBlock = 16;
constexpr int64_t kMinTailWaves = 2;
constexpr int64_t kMaxTailWaves = 8;
// Lists of a map differ in length more than the rows of a causal mask do.
constexpr int64_t kMinTailWavesOfLists = 4;
// Keys and values of a causal tail's heads, which are to stay in the L2 cache; but no fewer heads.
constexpr int64_t kTailBytes = 64 << 20;
constexpr int64_t kMinTailHeads = 2;

int64_t num_m_blocks(const Kernel& c, const ForwardCall& call, PackGqa pack) {
  return ceil_div(pack.rows(int64_t{call.seqlen_q}), c.shape.block_m);
}

bool combine_by_tile(const Kernel& c, const ForwardCall& call, const Tiling& tiling) {
  if (tiling.scheduler != Scheduler::kStreamK) return true;
  return !call.lengths_q.varlen && num_split_tiles(c, call, tiling.pack) <= tiling.split.ctas;
}

// How many tiles at the end go longest first, whatever their head.
int64_t tail_tiles(const Kernel& c, const ForwardCall& call, PackGqa pack, int num_sms) {
  if (call.mask.hides_nothing() && !call.block_mask.on) return 0;
  const int64_t waves = num_m_blocks(c, call, pack) / kTailWavesPerMBlock;
  if (!c.block_mask()) return std::clamp(waves, kMinTailWaves, kMaxTailWaves) * num_sms;
  return std::clamp(waves, kMinTailWavesOfLists, kMaxTailWaves) * num_sms * c.shape.ctas_per_sm;
}

// Packs of heads whose keys and values may be at work together in a tail.
int64_t most_tail_packs(const Kernel& c, const ForwardCall& call, PackGqa pack) {
  const int64_t packs = num_packs(call, pack);
  if (!call.is_causal()) return packs * call.q.batches;
  const int64_t columns = c.shape.head_dim + c.shape.head_dim_v;
  const int64_t bytes = call.k.heads * call.seqlen_k * columns * bytes_of(c.types().stored);
  return std::max(kMinTailHeads, kTailBytes * packs / std::max<int64_t>(bytes, 1));
}

}  // namespace

int64_t row_tiles(const Kernel& c, const ForwardCall& call, PackGqa pack) {
  if (!call.varlen) return num_m_blocks(c, call, pack) * call.q.batches;
  return ceil_div(pack.rows(call.q.rows * call.q.batches), c.shape.block_m) + call.sequences + 1;
}

int64_t num_tiles(const Kernel& c, const ForwardCall& call, PackGqa pack) {
  return row_tiles(c, call, pack) * num_packs(call, pack);
}

int64_t num_packs(const ForwardCall& call, PackGqa pack) {
  return call.q.heads / pack.heads();
}

int64_t most_m_blocks(const Kernel& c, const ForwardCall& call, PackGqa pack) {
  return std::max<int64_t>(1, num_m_blocks(c, call, pack));
}

int64_t num_split_tiles(const Kernel& c, const ForwardCall& call, PackGqa pack) {
  return call.sequences * most_m_blocks(c, call, pack) * num_packs(call, pack);
}

int64_t num_numbered_tiles(const Kernel& c, const ForwardCall& call, const Tiling& tiling) {
  const bool is_packed = call.lengths_q.in_one_tensor;
  if (is_packed && tiling.is_split()) return num_tiles(c, call, tiling.pack);
  const int64_t rows = is_packed ? tiling.pack.rows(call.q.rows) : 0;  // perhaps nobody's
  return num_split_tiles(c, call, tiling.pack) +
         ceil_div(rows, c.shape.block_m) * num_packs(call, tiling.pack);
}

int64_t num_combines(const Kernel& c, const ForwardCall& call, const Tiling& tiling) {
  if (tiling.scheduler != Scheduler::kStreamK) return num_numbered_tiles(c, call, tiling);
  return combine_by_tile(c, call, tiling) ? num_split_tiles(c, call, tiling.pack)
                                          : tiling.split.ctas;
}

// A stream-K range has at most two splits of tiles that are split.
int64_t num_partials(const Kernel& c, const ForwardCall& call, const Tiling& tiling) {
  const SplitKv& split = tiling.split;
  return tiling.scheduler == Scheduler::kStreamK
             ? int64_t{2} * split.ctas
             : capped_product(num_numbered_tiles(c, call, tiling), split.num_splits);
}

int64_t most_splits(const Kernel& c, const ForwardCall& call, const Tiling& tiling) {
  const SplitKv& split = tiling.split;
  if (tiling.scheduler != Scheduler::kStreamK) return split.num_splits;
  const int64_t tiles = std::max<int64_t>(1, num_split_tiles(c, call, tiling.pack));
  return ceil_div(split.in_pairs ? 2 * split.ctas : split.ctas, tiles) + 1;
}

TileOrder tile_order(const Kernel& c, const ForwardCall& call, PackGqa pack, int num_sms,
                     TilesTogether together) {
  const int64_t packs = num_packs(call, pack) / together.packs;
  if (call.varlen) return {int(row_tiles(c, call, pack)), int(packs), 1, 0};
  const int64_t batches = call.q.batches / together.batches;
  const int64_t m_blocks = num_m_blocks(c, call, pack) * together.count();
  const int64_t tail = std::min({ceil_div(tail_tiles(c, call, pack, num_sms), m_blocks),
                                 most_tail_packs(c, call, pack), packs * batches});
  return {int(m_blocks), int(packs), int(batches), int(tail)};
}

VarlenMetadata varlen_metadata(const Kernel& c, const ForwardCall& call, PackGqa pack,
                               int num_sms) {
  return {.lengths_q = call.lengths_q,
          .lengths_k = call.lengths_k,
          .batch = int(call.sequences),
          .block_m = c.shape.block_m,
          .pack = pack,
          .num_packs = int(num_packs(call, pack)),
          .tail_tiles = int(tail_tiles(c, call, pack, num_sms)),
          .capacity = int(row_tiles(c, call, pack)),
          .places = call.places};
}

SplitKvSchedule split_kv_schedule(const Kernel& c, const ForwardCall& call, const Tiling& tiling) {
  const bool is_stream_k = tiling.scheduler == Scheduler::kStreamK;
  SplitKvSchedule schedule{.sequences = varlen_metadata(c, call, tiling.pack, 0),
                           .mask = call.mask,
                           .block_n = c.shape.block_n,
                           .num_splits = is_stream_k ? 0 : tiling.split.num_splits,
                           .most_m_blocks = int(most_m_blocks(c, call, tiling.pack)),
                           .groups_log2 = tiling.split.groups_log2,
                           .combine_by_tile = combine_by_tile(c, call, tiling)};
  schedule.simple = schedule.is_simple();
  return schedule;
}

int pair_blocks(const Kernel& c, const ForwardCall& call, const Tiling& tiling) {
  if (!tiling.split.in_pairs || c.consumers() == 1 || call.varlen) return 0;
  const SplitKvSchedule schedule = split_kv_schedule(c, call, tiling);
  const int most = most_blocks_of_pair(schedule, schedule.sequence(0));
  const int64_t tiles = num_split_tiles(c, call, tiling.pack), ctas = tiling.split.ctas;
  const int64_t ranges = std::max<int64_t>(1, 2 * ctas / tiles);  // of a pair
  return ranges * tiles == 2 * ctas ? int(ceil_div(most, ranges) * ranges) : most;
}

}  // namespace fa3::hopper
