// SPDX-License-Identifier: Apache-2.0
//
// Everything that the model keeps of a CTA, and of those that run beside each other.
#pragma once

#include <array>
#include <memory>
#include <set>
#include <vector>

#include "cuda_words.h"
#include "fault.h"
#include "sm/barriers.h"
#include "sm/copies.h"
#include "sm/global_memory.h"
#include "sm/memory.h"
#include "sm/products.h"
#include "sm/registers.h"
#include "sm/scheduler.h"

namespace fa3::machine {

// Shared memory as C++ objects.
struct alignas(1024) SmemBytes {
  unsigned char bytes[kSmemBytes];
};

struct Block {
  Block(const Setting& setting, Scheduler& scheduler, GlobalMemory& global, Outcome& outcome,
        int warps, int cta, Index index);

  // The modelled thread that runs: its number in the CTA, its warp's, and in clocks.
  int thread() const { return scheduler.thread(); }
  int warp() const { return thread() / kLanes; }
  int warp_of_all() const { return cta * (scheduler.threads() / kLanes) + warp(); }
  int actor() const { return actor_of_thread(cta, thread()); }
  Clock& clock() { return clocks[size_t(thread())]; }
  Accessor accessor() { return {thread(), cta, clock()}; }
  // Products are a warp's: they count as those of its lane 0.
  int leader() const { return warp() * kLanes; }
  Accessor accessor_of_warp() { return {leader(), cta, clocks[size_t(leader())]}; }
  // In the memory of another CTA.
  Accessor accessor_in(const Block& other) { return {thread(), other.cta, clock()}; }
  void require_kernel_before_ended() const;
  void require_made(const Content& read) const;

  const Setting& setting;
  Scheduler& scheduler;
  GlobalMemory& global;
  Outcome& outcome;
  const int cta;      // among those that run
  const Index index;  // blockIdx
  int rank = 0;       // in its cluster
  ClusterBarrier* cluster = nullptr;
  int threads_left = 0;  // that have come to an end
  bool has_left() const { return threads_left == scheduler.threads(); }
  Clock known_at_end;  // to any of them
  // What one of them must know to be over: else the CTA's memory might be gone before.
  struct Visit {
    Moment end;
    const char* complaint;
  };
  std::vector<Visit> visits;
  Memory memory;
  std::unique_ptr<SmemBytes> smem;
  Registers registers;
  Faults faults;
  Barriers barriers;
  NamedBarriers named;
  std::vector<WarpMeeting> meetings;  // by warp
  // By modelled thread.
  std::array<Clock, kMostThreads> clocks;
  // Clocks at the last fence_mbarrier_init(): stores are in it too, which the fence of a GPU leaves
  // out.
  std::array<Clock, kMostThreads> fenced;
  std::array<Products, kMostThreads> products;
  std::array<Departures, kMostThreads> departures;
  std::array<ThreadCopies, kMostThreads> thread_copies;
  std::array<bool, kMostThreads> waited{};  // for the kernel before
  struct Found {
    std::set<const int*> looked, fenced;  // counters that said so, before and behind a fence
  };
  std::array<Found, kMostThreads> found;
};

// For the thread that runs: its CTA, and one of its cluster.
Block& here();
Block& block_of_cluster(int rank);

}  // namespace fa3::machine
