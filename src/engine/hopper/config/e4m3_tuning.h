// SPDX-License-Identifier: Apache-2.0
// How the consumers of e4m3 operands are compiled. Plain constexpr. Next:
// forward/policies/promoted_sum.cuh.
#pragma once

#include "core/scales.h"
#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

// Keys that make a part of O, in blocks (policies/promoted_sum.cuh), and the groups of keys in a
// block that share a scale.
FA3_HD constexpr int promotion_blocks(const Kernel& c) {
  constexpr int kPromotionKeys = 1152;
  return kPromotionKeys / c.shape.block_n;
}
FA3_HD constexpr int scale_groups(const Kernel& c) {
  return c.shape.block_n / kDescaleRows;
}

// Where a part ends, it joins the others while Q K^T runs, if registers last for both; else between
// two steps. Measured, over official: 128 columns 0.978 to 0.982, 64 columns 1.031 to 1.016.
FA3_HD constexpr bool promotes_under_scores(const Kernel& c) {
  return c.consumers() <= 2;
}

// The step that starts a tile is compiled apart from the others: these then have registers to
// spare, but short sequences pay for the longer code. Measured: at 128 columns 15% at causal 1k.
FA3_HD constexpr bool starts_apart(const Kernel& c) {
  return c.e4m3() && c.shape.head_dim_v > 128;
}

// A last part that is short begins with nothing, which spares the negative of the part before
// (policies/promoted_sum.cuh). Measured: one part less of 1k keys' two, 3% at 256 columns; blocks
// of 192 keys and three warpgroups lose 0.5%, by the code alone.
FA3_HD constexpr bool starts_last_part_again(const Kernel& c) {
  return c.e4m3() && !c.general() && c.shape.block_n <= 128 && c.consumers() <= 2;
}

// Rows leave by TMA, for which the warp does not wait (policies/sum_promoted.cuh).
FA3_HD constexpr bool stages_rows(const Kernel& c) {
  return c.e4m3() && !c.general();
}
// All slabs of them in one copy, where tensors are as wide as tiles and heads are not packed.
// Measured: a copy takes a warp some 150 clocks, and 256 columns up to 1k keys gain 2 to 3%; two
// copies are no slower than a choice.
FA3_HD constexpr bool sends_slabs_together(const Kernel& c) {
  return stages_rows(c) && c.tiles_in_smem().staged_o.slabs() > 2;
}

// Peaked rows are taken by steps of their own, in a loop of their own, that follow their maximum.
// While a step searches for it, shadow_p() of a thread's P are computed, three in eight. Measured:
// without that 2 to 5% of peaked rows' speed are lost.
FA3_HD constexpr bool tracks_max(const Kernel& c) {
  return c.e4m3() && !c.general();
}
FA3_HD constexpr int shadow_p(const Kernel& c) {
  return c.shape.block_n / 16 * 3;
}

// Sums of P begin with their first number, not with zero, and 2^-boost is read with a block's
// scales, not computed. Measured: steps of 192 keys gain 1%, others by up to 1.5% lose up to 1k
// keys.
FA3_HD constexpr bool lean_sums(const Kernel& c) {
  return c.e4m3() && c.shape.block_n == 192;
}

}  // namespace fa3::hopper
