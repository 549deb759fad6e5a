// SPDX-License-Identifier: Apache-2.0
// How many registers a thread of the forward kernel has. Plain constexpr. Next: consumer_tuning.h.
#pragma once

#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

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
