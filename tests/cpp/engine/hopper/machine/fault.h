// SPDX-License-Identifier: Apache-2.0
//
// What is broken on purpose in a kernel's protocol while it runs, without touching its sources.
#pragma once

#include <array>
#include <cstdint>

#include "clock.h"

namespace fa3::machine {

enum class Fault {
  kNone,
  kReleaseBeforeRead,  // consumers release a K/V stage as soon as it is full
  kProducerPhase,      // the producer waits for the other phase of empty K/V stages
  kConsumerPhase,      // consumers wait for the other phase of full ones
  kOneArrivalTooFew,   // a stage counts as empty before the last warp has released it
  kOneArrivalTooMany,
  kLostRelease,     // one warp forgets one release
  kTooFewBytes,     // a stage of two slabs counts as full after the first
  kNoFirstTurn,     // nobody gives the first turn to issue products
  kTurnGivenTwice,  // somebody gives his turn on twice
  // Faults of keys that threads copy:
  kOneCopierTooFew,  // a stage counts as full before the last warp's copies are there
  kNoFence,          // consumers read them without a fence
  // Faults of queries that consumers change in place:
  kNoQueryFence,    // products read them without a fence
  kNoQueryBarrier,  // or before the other warps have changed theirs
  // Faults of warps that fill their own stages, and of clusters:
  kNoSyncwarp,         // lanes do not wait for each other
  kNoCopyWait,         // nor for their own copies
  kNoClusterWait,      // rows are sent to who may not have room for them yet
  kNoLastClusterWait,  // nobody waits there but the first time
  kOwnArrivalsAlone,   // a stage counts as empty when this CTA has read it
  kSplitCountedTwice,  // somebody combines splits of which the last is not there
  // Where CTAs wait for what others store in global memory:
  kNoFlagWait,       // nobody waits for a flag
  kFlagLeftRaised,   // nobody takes one back
  kFlagRaisedEarly,  // it tells of nothing that was stored
  // Faults of barriers of a CTA:
  kNoBlockBarrier,  // nobody waits at __syncthreads but the first time
  kNoNamedBarrier,  // nobody comes to one numbered barrier
};

// Which barriers the faults are about.
struct KvBarriers {
  uint32_t first_full = 0, first_empty = 0;
  int stages = 0;
  bool is_full(uint32_t barrier) const { return within(barrier, first_full); }
  bool is_empty(uint32_t barrier) const { return within(barrier, first_empty); }

 private:
  bool within(uint32_t barrier, uint32_t first) const {
    return barrier >= first && barrier < first + uint32_t(stages) * sizeof(uint64_t);
  }
};

// Asked by the barriers at each step.
class Faults {
 public:
  // barrier: the number of the one that the fault is about.
  Faults(Fault fault, KvBarriers kv, int barrier) : fault_(fault), kv_(kv), barrier_(barrier) {}

  int arrivals(uint32_t barrier, int count) const {
    if (kv_.is_full(barrier)) return count - is(Fault::kOneCopierTooFew);
    if (!kv_.is_empty(barrier)) return count;
    if (is(Fault::kOwnArrivalsAlone)) return count / 2;
    return count + is(Fault::kOneArrivalTooMany) - is(Fault::kOneArrivalTooFew);
  }
  bool forgets_fence(int warp) const {
    constexpr int kFirstConsumer = 4;
    return is(Fault::kNoFence) || (is(Fault::kNoQueryFence) && warp >= kFirstConsumer);
  }
  bool forgets_syncwarp() const { return is(Fault::kNoSyncwarp); }
  bool forgets_copies() const { return is(Fault::kNoCopyWait); }
  bool forgets_cluster_wait(int thread) {
    if (is(Fault::kNoLastClusterWait)) return cluster_waits_[size_t(thread)]++ > 0;
    return is(Fault::kNoClusterWait);
  }
  bool forgets_arrival_elsewhere() const { return is(Fault::kOwnArrivalsAlone); }
  uint64_t counted(uint64_t splits) const {
    return is(Fault::kSplitCountedTwice) ? 2 * splits : splits;
  }
  bool forgets_flags() const { return is(Fault::kNoFlagWait); }
  bool leaves_flags() const { return is(Fault::kFlagLeftRaised); }
  bool tells_nothing() const { return is(Fault::kFlagRaisedEarly); }
  bool forgets_barrier(int number) const {
    constexpr int kFirstOfQueries = 5;
    return (is(Fault::kNoQueryBarrier) && number >= kFirstOfQueries) ||
           forgets_numbered_barrier(number);
  }
  bool forgets_numbered_barrier(int number) const {
    return is(Fault::kNoNamedBarrier) && number == barrier_;
  }
  bool forgets_block_barrier(int thread) {
    return is(Fault::kNoBlockBarrier) && block_barriers_[size_t(thread)]++ > 0;
  }
  bool forgets_arrival(uint32_t barrier, int warp) {
    if (!kv_.is_empty(barrier)) return false;
    if (is(Fault::kReleaseBeforeRead)) return true;  // done long ago
    constexpr int kForgetful = 4, kForgotten = 3;
    return is(Fault::kLostRelease) && warp == kForgetful && releases_++ == kForgotten;
  }
  int64_t expected(uint32_t barrier, int64_t bytes) const {
    return is(Fault::kTooFewBytes) && kv_.is_full(barrier) ? bytes / 2 : bytes;
  }
  uint32_t parity(uint32_t barrier, uint32_t parity) const {
    const bool flipped = (is(Fault::kProducerPhase) && kv_.is_empty(barrier)) ||
                         (is(Fault::kConsumerPhase) && kv_.is_full(barrier));
    return flipped ? parity ^ 1 : parity;
  }
  // The barrier that a warp arrives at once it sees this one completed; 0: none.
  uint32_t released_by_reading(uint32_t barrier) const {
    if (!is(Fault::kReleaseBeforeRead) || !kv_.is_full(barrier)) return 0;
    return barrier - kv_.first_full + kv_.first_empty;
  }
  int times_turn_is_given(int warp) {
    const int given = turns_given_[size_t(warp)]++;
    if (given == 0 && is(Fault::kNoFirstTurn)) return 0;
    return given == 2 && is(Fault::kTurnGivenTwice) ? 2 : 1;
  }

 private:
  bool is(Fault fault) const { return fault_ == fault; }

  Fault fault_;
  KvBarriers kv_;
  int barrier_;
  int releases_ = 0;
  std::array<int, kMostThreads> turns_given_{};
  std::array<int, kMostThreads> block_barriers_{};  // that a thread has come to
  std::array<int, kMostThreads> cluster_waits_{};
};

}  // namespace fa3::machine
