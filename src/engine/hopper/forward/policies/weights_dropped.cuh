// SPDX-License-Identifier: Apache-2.0
// Dropout: P is dropped where it becomes an operand. The sums of P have it all.
#pragma once

#include "core/dropout/dropout.h"
#include "engine/cuda/dropout/dropout.cuh"
#include "engine/hopper/forward/policies/weights.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

template <Kernel C>
requires(C.dropout()) struct WeightsOf<C> : WeightVerbs {
  // The generator's words for a block's P, 64 keys each.
  struct Registers {
    PhiloxWords draws[C.shape.block_n / kDropoutKeys];
  };

  __device__ __forceinline__ explicit WeightsOf(const ForwardParams& params)
      : dropout(params.dropout) {}

  template <class Consumer, class Work>
  __device__ __forceinline__ void begin_tile(const Consumer& c, const Work& work) {
    dropout.set_tile(sequence_of<C>(work), work.queries.pack, c.first_row_of(work));
  }
  // Early draws are made while the other warpgroup's products run. Behind the beginning of this
  // one's turn they would hold up both.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void draw_early(const Consumer& c, Tile& r) const {
    if (kDrawsEarly) draw(c, r);
  }
  template <class Consumer, class Tile>
  __device__ __forceinline__ void draw_late(const Consumer& c, Tile& r) const {
    if (!kDrawsEarly) draw(c, r);
  }
  template <class Consumer, class Tile>
  __device__ __forceinline__ void drop(const Consumer& c, Tile& r) const {
    dropout.drop(r.p, r.draws, c.params.dropout);
  }
  static __device__ __forceinline__ KeptValues values(const ForwardParams& params) {
    KeptValues values{};
    values.scale = params.dropout.scale;
    return values;
  }

  QueryRowDropout dropout;

 private:
  // Draws are made before a step's products and wait in registers, of which three consumers have
  // none to spare. Measured: docs/lab/dropout.md.
  static constexpr bool kDrawsEarly = C.consumers() <= 2;

  template <class Consumer, class Tile>
  __device__ __forceinline__ void draw(const Consumer& c, Tile& r) const {
    const uint32_t base = ptx::ld_shared_b32(ptx::cvta_to_shared(&c.work_tile().first_key));
    dropout.call(r.draws, int(base) + c.tile.first_key());
  }
};

}  // namespace fa3::hopper
