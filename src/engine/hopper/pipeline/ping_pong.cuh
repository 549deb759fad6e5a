// SPDX-License-Identifier: Apache-2.0
// Ping-pong (paper, section 3.1): consumer warpgroups take turns to issue their products, so that
// one computes softmax while another's products run.
//
// One token goes round the warpgroups 0, 1, ..., 0. A warpgroup takes it and passes it on once a
// step, whether it has products to issue or not: so all take equally many turns, and each waits for
// its neighbour alone. The last warpgroup passes it first, and warpgroup 0 takes it at the end.
#pragma once

#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

template <int Warpgroups, bool Enabled>
class PingPong {
 public:
  __device__ __forceinline__ explicit PingPong(int warpgroup) : warpgroup_(warpgroup) {}

  __device__ __forceinline__ void open() const {
    if (warpgroup_ == Warpgroups - 1) pass();
  }
  __device__ __forceinline__ void close() const {
    if (warpgroup_ == 0) wait();
  }

  __device__ __forceinline__ void wait() const {
    if constexpr (Enabled) {
      ptx::bar_sync(int(NamedBarrier::kPingPong) + warpgroup_, kPingPongThreads);
    }
  }
  __device__ __forceinline__ void pass() const {
    if constexpr (Enabled) {
      const int next = warpgroup_ + 1 == Warpgroups ? 0 : warpgroup_ + 1;
      ptx::bar_arrive(int(NamedBarrier::kPingPong) + next, kPingPongThreads);
    }
  }

 private:
  const int warpgroup_;
};

}  // namespace fa3::hopper
