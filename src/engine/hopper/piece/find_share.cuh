// SPDX-License-Identifier: Apache-2.0
// Where a thread block's share of all key blocks begins: one warp adds up the sequences' units, each
// lane its own, then goes through them again up to the share. Next: ../tile_stream.cuh.
#pragma once

#include "engine/hopper/piece/key_split.h"
#include "engine/hopper/ptx/lanes.cuh"

namespace fa3::hopper {

// The sum of the values of this lane and those before it.
__device__ __forceinline__ int64_t sum_until(int64_t value) {
  const int lane = int(threadIdx.x) % ptx::kLanes;
  for (int distance = 1; distance < ptx::kLanes; distance *= 2) {
    const int64_t other = __shfl_up_sync(0xffffffff, value, distance);
    if (lane >= distance) value += other;
  }
  return value;
}

// By a whole warp; every lane gets the answer.
__device__ __forceinline__ Share find_share(const KeySplit& split, int block, int num_blocks) {
  block /= split.rows_of_units, num_blocks /= split.rows_of_units;  // of one row
  const int lane = int(threadIdx.x) % ptx::kLanes;
  const int count = split.sequences.num_sequences();
  const auto units_of = [&](int b) -> int64_t {
    return b < count ? split.units_of(split.sequences.sequence(b)) : 0;
  };
  int64_t own = 0;
  for (int b = lane; b < count; b += ptx::kLanes) own += units_of(b);
  const int64_t all = __shfl_sync(0xffffffff, sum_until(own), ptx::kLanes - 1);
  const int64_t whole = (all + num_blocks - 1) / num_blocks;
  const int64_t begin = block * whole;
  Share share{.whole = int(whole)};
  if (begin >= all) return share;
  share.left = int(all - begin < whole ? all - begin : whole);
  int64_t before = 0;
  for (int first = 0;; first += ptx::kLanes) {
    const int64_t units = units_of(first + lane);
    const int64_t until = before + sum_until(units);
    const unsigned reached = __ballot_sync(0xffffffff, until > begin);
    if (reached != 0) {
      const int owner = __ffs(int(reached)) - 1;
      share.sequence = first + owner;
      share.offset = int(begin - __shfl_sync(0xffffffff, until - units, owner));
      return share;
    }
    before = __shfl_sync(0xffffffff, until, ptx::kLanes - 1);
  }
}

}  // namespace fa3::hopper
