// SPDX-License-Identifier: Apache-2.0
// Every byte of shared memory of the backward's main kernel, and what one thread works out at the
// start for all: the key block, the queries that see it, and where all of them lie. Next:
// query_block.h.
#pragma once

#include "engine/ampere/backward/row_block.h"
#include "engine/ampere/config/backward_config.h"

namespace fa3::ampere {

struct KeyBlockWork {
  RowBlock keys;
  int q_batch, q_begin;
  int first_key;
  SequenceExtents extents;
  QuerySteps steps;
  int num_steps;  // of all heads that share the keys
  ScratchPlace scratch;

  static FA3_HD constexpr KeyBlockWork of(const BackwardParams& p, const RowBlock& keys,
                                          int first_key, int block_m, int block_n) {
    const Rows q = rows_of(p.lengths_q, keys.sequence);
    KeyBlockWork w{.keys = keys,
                   .q_batch = p.lengths_q.in_one_tensor ? 0 : keys.sequence,
                   .q_begin = int(q.begin),
                   .first_key = first_key,
                   .extents = SequenceExtents::of(int(q.used), keys.used, p.mask, first_key),
                   .steps = {},
                   .num_steps = 0,
                   .scratch = scratch_place(p.rows, keys.sequence, int(q.begin), block_m)};
    w.steps = query_steps(w.extents, first_key, block_n, block_m);
    w.num_steps = w.steps.per_head() * p.heads_per_kv_head;
    return w;
  }
};

// Offsets; tiles first, each a multiple of 1024 bytes or, behind these, of 16.
template <BackwardConfig C>
struct BackwardSmem {
  static constexpr int kK = 0;
  static constexpr int kV = kK + C.k_tile().bytes();
  static constexpr int kStages = kV + C.v_tile().bytes();
  static constexpr int kP = kStages + C.stages * C.stage_bytes();
  static constexpr int kDs = kP + C.p_bytes();
  static constexpr int kStatistics = kDs + C.ds_tile().bytes();
  static constexpr int kSlopes = kStatistics + C.stages * C.statistics_bytes();
  static constexpr int kWork = kSlopes + C.slope_bytes();
  static_assert(kWork == C.tile_bytes());
  static constexpr int kBytes = kWork + int{sizeof(KeyBlockWork)};

  static FA3_HD constexpr int q(int stage) { return kStages + stage * C.stage_bytes(); }
  static FA3_HD constexpr int d_o(int stage) { return q(stage) + C.q_tile().bytes(); }
  static FA3_HD constexpr int lse(int stage) { return kStatistics + stage * C.statistics_bytes(); }
  static FA3_HD constexpr int delta(int stage) {
    return lse(stage) + C.block_m * int{sizeof(float)};
  }
};

// Whether the values' side may begin a step before the keys' side has left the one before. With one
// stage it waits for kSpent, and the keys' side for kLoaded: they say what kPEmpty and kDsRead
// would.
FA3_HD constexpr bool sides_run_apart(const BackwardConfig& c) {
  return c.stages > 1;
}

// Named barriers. From kPFull on one side arrives and the other waits.
inline constexpr int kMaxStages = 3;
enum class BackwardBarrier : int {
  kValues = 1,                    // of the values' side alone
  kKeys,                          // of the keys' side alone
  kKeysThere,                     // K and V are there
  kPFull,                         // P is in shared memory
  kPEmpty,                        // and has been read (where sides run apart)
  kDsRead,                        // by the values' side, dS has been read (likewise)
  kLoaded,                        // Q and dO of a stage are there; one for each stage
  kSpent = kLoaded + kMaxStages,  // the keys' side has read them, and dS of that step is there
};

}  // namespace fa3::ampere
