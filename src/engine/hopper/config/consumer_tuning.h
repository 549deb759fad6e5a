// SPDX-License-Identifier: Apache-2.0
// How the consumers of a forward kernel are compiled: which steps they have, and where registers
// are spent. Plain constexpr. Those of e4m3 operands: e4m3_tuning.h. Next:
// forward/consumer/consumer.cuh.
#pragma once

#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

// How far below 1 a row's largest P begins (cuda/softmax/score.cuh): with 24 binary orders scores
// seldom outgrow it. Measured: docs/lab/hopper.md.
FA3_HD constexpr int headroom_log2(const Kernel& c) {
  return c.has_headroom() ? 24 : 0;
}

// The tile's edge is read from shared memory whenever it is asked for.
FA3_HD constexpr bool reads_edge_again(const Kernel& c) {
  return c.general() || c.e4m3();
}

// A shorter step between tiles, by registers. Measured: two warpgroups gain 1 to 4% up to 2k keys,
// three lose 1%.
FA3_HD constexpr bool short_tile_change(const Kernel& c) {
  return c.consumers() <= 2;
}

// P of a thread that are packed while the others are still exponentiated, which waits for the
// product before. Measured: at 64 columns, where the product is short, a gain of 1 to 3%; else a
// loss of 3%; with e4m3 a loss of 6 to 15%. With dropout none: a fired guard looks for the largest
// P, dropped or not.
FA3_HD constexpr int early_p(const Kernel& c) {
  const bool gains = c.shape.overlaps && c.shape.head_dim_v <= 64 && !c.e4m3();
  return gains && c.guarded() && !c.dropout() ? c.shape.block_n / 8 * 3 : 0;
}

FA3_HD constexpr bool has_registers_for_rare_code(const Kernel& c) {
  return c.shape.head_dim_v <= 192 || c.consumers() == 1;
}
// O may be float32, or its rows end within 16 bytes. Elsewhere the compiler spills.
FA3_HD constexpr bool stores_any_rows(const Kernel& c) {
  return c.general() && !c.dequantizes() && !c.block_mask() && c.shape.head_dim != 96 &&
         has_registers_for_rare_code(c);
}
// Lost scores can be computed again from keys in pages, so that these may take guarded steps.
// Elsewhere the compiler spills.
FA3_HD constexpr bool recomputes_pages(const Kernel& c) {
  return c.may_use_cp_async() && !c.capped() && has_registers_for_rare_code(c);
}

// Few queries over a quantized cache. Tiles are small and follow each other soon, so what a step
// waits for counts: rows past the last query are left alone, and O is only multiplied where a
// reference moves.
FA3_HD constexpr bool short_steps(const Kernel& c) {
  return c.dequantizes() && c.consumers() == 1;
}

}  // namespace fa3::hopper
