// SPDX-License-Identifier: Apache-2.0
// The consumer (paper, Algorithm 1): one warpgroup, from its first tile to its last. Next:
// consumer_state.cuh, mainloop.cuh, serial_loop.cuh.
#pragma once

#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/consumer/mainloop.cuh"
#include "engine/hopper/forward/consumer/serial_loop.cuh"

namespace fa3::hopper {

template <Kernel C>
__device__ __forceinline__ void consume_with_overlap(ConsumerState<C>& c, ThreadTile<C>& r) {
  c.ping_pong.open();
  for (;;) {
    Step step = next_step(c);
    if (step == Step::kEnd) break;
    if (step == Step::kOthers) {
      pass_block(c);
      continue;
    }
    MainLoop<C>::run(c, r, step);
    last_product(c, r, step);
    if (step == Step::kEnd) break;
  }
  c.stages.release_delayed_v();
  if constexpr (consumer_tuning(C).stages_rows) StagedRows<C>::wait();
  c.ping_pong.close();
}

template <Kernel C>
__device__ __forceinline__ void consume(ConsumerState<C>&& c) {
  ThreadTile<C> r;
  if constexpr (C.shape.overlaps) {
    consume_with_overlap(c, r);
  } else {
    consume_serially(c, r);
  }
}

}  // namespace fa3::hopper
