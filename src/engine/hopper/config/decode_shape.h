// SPDX-License-Identifier: Apache-2.0
// The stages of a decode kernel's warps. Plain constexpr. Next: decode/stages.cuh.
#pragma once

#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

struct DecodeShape {
  int stage_keys;
  int stages;       // of a warp
  int ctas_per_sm;  // 2: two launches overlap on an SM (PDL), each with half the shared memory
  bool may_use_tma;

  FA3_HD constexpr bool overlaps_next_call() const { return ctas_per_sm > 1; }
};

// Warps of a single sequence's kernel have all the room for stages, and joined rows lie in them.
// TMA may fill the stages; else the warp's lanes do, which is faster where all SMs read e4m3, but
// for sixteen rows (docs/lab/decoding.md).
FA3_HD constexpr DecodeShape decode_shape(const Kernel& c) {
  constexpr int kSingleStageBytes = 192 << 10;
  const int keys = c.shape.block_n / c.consumer_warps();
  const int ctas =
      c.is_single_sequence() && c.shape.block_m <= 8 && c.shape.head_dim_v <= 128 ? 2 : 1;
  const int stage_bytes = keys * c.shape.head_dim * bytes_of(c.types().stored);
  const int stages = c.is_single_sequence()
                         ? kSingleStageBytes / ctas / (c.consumer_warps() * stage_bytes)
                         : c.shape.kv_stages;
  return {keys, stages, ctas, c.is_single_sequence() || !c.dequantizes() || c.shape.block_m > 8};
}

}  // namespace fa3::hopper
