// SPDX-License-Identifier: Apache-2.0
// How a forward kernel is compiled: which steps its consumers have, and where registers are spent.
// Plain constexpr. Those of e4m3 operands: e4m3_tuning.h. Next:
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
FA3_HD constexpr bool recomputes_pages(const Kernel& c) {
  return (c.general() || c.is_stream_k()) && !c.e4m3() && !c.dequantizes();
}

// Few queries over a quantized cache. Tiles are small and follow each other soon, so what a step
// waits for counts: rows past the last query are left alone, and O is only multiplied where a
// reference moves.
FA3_HD constexpr bool short_steps(const Kernel& c) {
  return c.dequantizes() && c.consumers() == 1;
}

// ---- How many registers a thread has ----

// 64 K registers over the launch's threads, in steps of 8: 168 for 384 threads, 128 for 512 or
// twice 256, 80 for three times 256 or twice 384. After setmaxnreg the sum over warpgroups must not
// pass 512: 40 + 2 * 232 = 72 + 2 * 216 = 88 + 2 * 208 = 24 + 2 * 240 = 504, 32 + 3 * 160 = 512,
// 2 * (72 + 184) = 512, 2 * (32 + 208), 2 * (32 + 2 * 104) or 3 * (32 + 128) = 480.
struct RegisterBudget {
  int launch;  // from here setmaxnreg takes a thread up or down
  int producer;
  int consumer;
};

// Scores N/2, the previous block's packed P where steps overlap, output Dv/2, and some 28 for the
// rest.
FA3_HD constexpr int consumer_registers_used(const Kernel& c) {
  const int packed_p = c.shape.overlaps ? c.shape.block_n * bytes_of(c.types().product) / 8 : 0;
  return c.shape.block_n / 2 + packed_p + c.shape.head_dim_v / 2 + 28;
}

// The producer spills below 40, except for dense e4m3 tiles; splitting tiles takes more: with 88 it
// hardly spills.
FA3_HD constexpr RegisterBudget register_budget(const Kernel& c) {
  const int all = 65536 / (c.threads() * c.shape.ctas_per_sm) / 8 * 8;
  const int launch = all < 256 ? all : 256, used = consumer_registers_used(c);
  const bool few_consumers = c.consumers() <= 2;
  if (c.consumers() == 1) {
    const int few = c.shape.ctas_per_sm == 3 ? 128 : c.can_split() ? 184 : 208;
    return {launch, c.can_split() ? 72 : 32, c.shape.ctas_per_sm == 1 ? 240 : few};
  }
  if (few_consumers && c.shape.ctas_per_sm > 1) return {launch, 32, 104};
  if (few_consumers && c.can_split()) {
    return used <= 192 ? RegisterBudget{launch, 88, 208} : RegisterBudget{launch, 72, 216};
  }
  if (few_consumers) {
    const bool spares_producer = used > 232 || (c.e4m3() && !c.general());
    return spares_producer ? RegisterBudget{launch, 24, 240} : RegisterBudget{launch, 40, 232};
  }
  return {launch, c.can_split() ? 72 : 32, 160};
}

}  // namespace fa3::hopper
