// SPDX-License-Identifier: Apache-2.0
// Which keys are whose: the warps of a cluster, or of all parts of a tile, take the keys of a stage
// in turn. Plain numbers, tested on the host. Next: stages.cuh.
#pragma once

#include "core/macros.h"

namespace fa3::hopper {

// The share of one of 2^warps_log2 warps.
template <int SlotKeys>
struct WarpKeys {
  static_assert((SlotKeys & (SlotKeys - 1)) == 0);
  int first_key, step_keys, step_log2;

  FA3_HD constexpr WarpKeys(int warp, int warps_log2)
      : first_key(warp * SlotKeys),
        step_keys(SlotKeys << warps_log2),
        step_log2(log2_of(SlotKeys) + warps_log2) {}

  // Stages that hold its share of `keys` keys.
  FA3_HD constexpr int stages_of(int keys) const {
    return keys <= first_key ? 0 : ((keys - first_key - 1) >> step_log2) + 1;
  }

 private:
  static FA3_HD constexpr int log2_of(int n) { return n == 1 ? 0 : 1 + log2_of(n / 2); }
};

}  // namespace fa3::hopper
