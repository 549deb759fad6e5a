// SPDX-License-Identifier: Apache-2.0
// Pipelines and turns. A pipeline of shared-memory stages runs between the producer and the
// consumers. Each stage has two barriers: `full` (the producer's arrival, and the bytes that TMA
// still has to bring) and `empty` (one arrival from each consumer warp). A PipelineState is a
// position in the ring of stages, whose phase flips each time round. The producer starts one phase
// ahead, so that it finds every stage empty at first.
#pragma once

#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/mbarrier.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

template <int Stages>
class PipelineState {
 public:
  __device__ __forceinline__ uint32_t stage() const { return kCounts ? at_ % Stages : at_; }
  __device__ __forceinline__ uint32_t phase() const { return kCounts ? at_ / Stages % 2 : phase_; }

  // One stage before the start, for a reader that advances before it reads.
  static __device__ __forceinline__ PipelineState before_start() {
    return PipelineState().previous();
  }

  __device__ __forceinline__ PipelineState previous() const {
    static_assert(kCounts);
    PipelineState before = *this;
    --before.at_;
    return before;
  }

  __device__ __forceinline__ PipelineState next() const {
    PipelineState after = *this;
    after.advance();
    return after;
  }

  __device__ __forceinline__ void advance() {
    ++at_;
    if (!kCounts && at_ == Stages) {
      at_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  // If the number of stages is a power of two, one running count is enough: a register saved.
  static constexpr bool kCounts = (Stages & (Stages - 1)) == 0;
  uint32_t at_ = 0;
  uint32_t phase_ = 0;
};

// The barriers' storage.
template <int Stages>
struct PipelineBarriers {
  uint64_t full[Stages];
  uint64_t empty[Stages];
};

// The protocol, on the storage at a shared-memory address.
template <int Stages>
struct Pipeline {
  uint32_t address;

  __device__ __forceinline__ uint32_t full(uint32_t stage) const {
    return address + stage * sizeof(uint64_t);
  }
  __device__ __forceinline__ uint32_t empty(uint32_t stage) const {
    return address + (Stages + stage) * sizeof(uint64_t);
  }

  // One thread, once. A producer of several warps fills a stage when all have arrived.
  __device__ void init(int consumer_arrivals, int producer_arrivals = 1) const {
    for (int stage = 0; stage < Stages; ++stage) {
      ptx::mbarrier_init(full(stage), producer_arrivals);
      ptx::mbarrier_init(empty(stage), consumer_arrivals);
    }
  }

  __device__ __forceinline__ bool is_empty(PipelineState<Stages> at) const {
    return ptx::mbarrier_try_wait_parity(empty(at.stage()), at.phase() ^ 1);
  }

  __device__ __forceinline__ void wait_empty(PipelineState<Stages> at) const {
    ptx::mbarrier_wait_parity(empty(at.stage()), at.phase() ^ 1);
  }

  __device__ __forceinline__ bool is_full(PipelineState<Stages> at) const {
    return ptx::mbarrier_try_wait_parity(full(at.stage()), at.phase());
  }

  __device__ __forceinline__ void wait_full(PipelineState<Stages> at) const {
    ptx::mbarrier_wait_parity(full(at.stage()), at.phase());
  }

  // One lane of each consumer warp, after the whole warp has finished with the stage.
  __device__ __forceinline__ void release(uint32_t stage) const {
    ptx::mbarrier_arrive(empty(stage));
  }
};

// ---- Ping-pong (paper, section 3.1): consumer warpgroups take turns to issue their products, so
// that one computes softmax while another's products run.
//
// One token goes round the warpgroups 0, 1, ..., 0. A warpgroup takes it and passes it on once a
// step, whether it has products to issue or not: so all take equally many turns, and each waits for
// its neighbour alone. The last warpgroup passes it first, and warpgroup 0 takes it at the end ----

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
