// SPDX-License-Identifier: Apache-2.0
#include "sm/barriers.h"

#include <algorithm>
#include <string_view>

#include "failure.h"
#include "sm/block.h"

namespace fa3::machine {

void Barriers::init(uint32_t address, int arrivals) {
  if (barriers_.size() == kMostBarriers) fail("more than ", kMostBarriers, " barriers");
  Barrier b;
  b.actor = actor_of_barrier(here().cta, int(barriers_.size()));
  b.arrivals = b.pending = here().faults.arrivals(address, arrivals);
  b.made = here().clock().now(here().actor());
  if (!barriers_.emplace(address, b).second) fail("barrier ", address, " is initialised twice");
}

Barrier& Barriers::at(uint32_t address) {
  const auto found = barriers_.find(address);
  if (found == barriers_.end()) fail("barrier ", address, " was not initialised");
  return found->second;
}

void Barriers::arrive(uint32_t address, int64_t bytes) {
  Block& block = here();
  block.scheduler.yield();
  if (block.faults.forgets_arrival(address, block.warp())) return;
  Barrier& b = at(address);
  b.telling.learn(block.clock());
  block.clock().tick(block.actor());
  b.bytes += block.faults.expected(address, bytes);
  --b.pending;
  complete_if_due(address);
}

void Barriers::require_known(uint32_t address, const Clock& knows) {
  if (!knows.has(at(address).made)) {
    fail("barrier ", address, " of another CTA, which has not told that it is there");
  }
}

void Barriers::complete_if_due(uint32_t address) {
  Barrier& b = at(address);
  if (b.pending < 0) fail("barrier ", address, " got more arrivals than it counts");
  if (b.pending != 0 || b.bytes != 0) return;
  b.pending = b.arrivals;
  b.came = 0;
  ++b.completed;
  b.telling.learn({b.actor, b.completed});
  b.told = b.telling;
  b.telling = {};
  for (size_t thread = 0; thread < waiters_.size(); ++thread) {
    if (waiters_[thread].barrier == address && b.completed - 1 > waiters_[thread].phase) {
      fail("phases alias: barrier ", address, " ran past ", name(int(thread)));
    }
  }
}

bool Barriers::has_passed(uint32_t address, uint32_t parity) {
  return uint32_t(at(address).completed & 1) != here().faults.parity(address, parity);
}

// This warp knows now that a phase is over: the one after the last it knew of, or that one again.
void Barriers::note_passed(uint32_t address) {
  Block& block = here();
  const Barrier& b = at(address);
  int& seen = waiters_[size_t(block.thread())].seen[address];
  if (b.completed > seen + 1) {
    fail("phases alias: ", name(block.thread()), " missed a phase of barrier ", address);
  }
  const bool news = b.completed > seen;
  seen = b.completed;
  block.clock().learn(b.told);
  const uint32_t released = news ? block.faults.released_by_reading(address) : 0;
  if (released != 0) {
    --at(released).pending;
    complete_if_due(released);
  }
}

bool Barriers::passed(uint32_t address, uint32_t parity) {
  here().scheduler.yield();
  const bool passed = has_passed(address, parity);
  if (passed) note_passed(address);
  return passed;
}

void Barriers::wait(uint32_t address, uint32_t parity) {
  Waiter& waiter = waiters_[size_t(here().thread())];
  waiter.barrier = address;
  waiter.phase = at(address).completed;
  here().scheduler.wait_until("barrier " + std::to_string(address),
                              [=, this] { return has_passed(address, parity); });
  waiter.barrier = 0;
  note_passed(address);
}

Moment Barriers::end_of_phase(uint32_t address) {
  const Barrier& b = at(address);
  return {b.actor, b.completed + 1};
}

void Barriers::bytes_arrived(uint32_t address, int64_t bytes) {
  at(address).bytes -= bytes;
  at(address).came += bytes;
  complete_if_due(address);
}

void Barriers::copies_arrived(uint32_t address) {
  --at(address).pending;
  complete_if_due(address);
}

void Barriers::require_at_rest(const std::vector<uint32_t>& expect_ahead) const {
  for (const auto& [address, b] : barriers_) {
    const bool may_expect = std::ranges::count(expect_ahead, address) > 0;
    if (may_expect ? b.came != 0 : b.bytes != 0)
      fail("barrier ", address, " was left with bytes under way");
  }
}

void NamedBarriers::count(int id, int threads, bool waits, bool value) {
  Block& block = here();
  constexpr int kMostNamed = 16;
  const int thread = block.thread();
  if (id < 0 || id >= kMostNamed) fail("named barrier ", id, ": there are 0 to 15");
  Named& b = barriers_[id];
  if (b.arrived.empty()) b.threads = threads;
  if (b.threads != threads || threads % kThreadsPerWarp != 0) {
    fail("named barrier ", id, ": of ", b.threads, " threads, but of ", threads, " for ",
         name(thread));
  }
  if (std::find(b.arrived.begin(), b.arrived.end(), thread) != b.arrived.end()) {
    fail("named barrier ", id, ": ", name(thread), " arrives twice in one phase");
  }
  b.arrived.push_back(thread);
  if (waits) b.waiting.push_back(thread);
  if (value) b.counted += kThreadsOfLane;
  b.telling.learn(block.clock());
  block.clock().tick(block.actor());
  if (int(b.arrived.size()) * kThreadsOfLane < threads) return;
  for (int waiting : b.waiting) block.clocks[size_t(waiting)].learn(b.telling);
  b = {.completed = b.completed + 1, .last_counted = b.counted};
}

void NamedBarriers::arrive(int id, int threads) {
  Block& block = here();
  block.scheduler.yield();
  const int times = block.faults.times_turn_is_given(block.thread());
  for (int i = 0; i < times; ++i) count(id, threads, false);
}

void NamedBarriers::sync(int id, int threads) {
  sync_and_count(id, threads, false);
}

unsigned NamedBarriers::sync_and_count(int id, int threads, bool value) {
  Scheduler& scheduler = here().scheduler;
  scheduler.yield();
  const Named& b = barriers_[id];
  const int64_t phase = b.completed;
  count(id, threads, true, value);
  scheduler.wait_until("named barrier " + std::to_string(id),
                       [&b, phase] { return b.completed > phase; });
  return b.last_counted;
}

size_t ClusterBarrier::own_number() {
  const Block& block = here();
  return size_t(block.rank * block.scheduler.threads() + block.thread());
}

void ClusterBarrier::arrive(bool tells) {
  Block& block = here();
  block.scheduler.yield();
  int& phase = arrived_[own_number()];
  if (phase != 0) {
    fail("the cluster's barrier: ", name(block.thread()), " arrives twice without a wait");
  }
  phase = last_[own_number()] = completed_ + 1;
  if (tells) {
    telling_.learn(block.clock());
  } else {
    telling_.learn(block.fenced[size_t(block.thread())]);
    telling_.learn_phases(block.clock());
  }
  block.clock().tick(block.actor());
  count();
}

// One thread less to wait for.
void ClusterBarrier::count() {
  if (--pending_ != 0) return;
  pending_ = present_;
  ++completed_;
  told_ = telling_;
  telling_ = {};
}

void ClusterBarrier::leave() {
  --present_;
  if (last_[own_number()] <= completed_) count();
}

void ClusterBarrier::wait() {
  Block& block = here();
  const int phase = arrived_[own_number()];
  if (phase == 0) fail("the cluster's barrier: ", name(block.thread()), " waits unarrived");
  if (!block.faults.forgets_cluster_wait(block.thread())) {
    block.scheduler.wait_until("the cluster's barrier",
                               [this, phase] { return completed_ >= phase; });
    block.clock().learn(told_);
  }
  arrived_[own_number()] = 0;
}

void ClusterBarrier::require_waited() const {
  if (arrived_[own_number()] == 0) return;
  fail(name(here().thread()), " left without a wait at the cluster's barrier");
}

const WarpMeeting::Values& WarpMeeting::exchange(const char* instruction, uint64_t mine,
                                                 const std::function<void(const Values&)>& work) {
  Block& block = here();
  if (arrived_ == 0) instruction_ = instruction;
  if (std::string_view(instruction_) != instruction) {
    fail("lanes of one warp meet in different instructions: ", instruction_, ", and ", instruction,
         " by ", name(block.thread()));
  }
  const int phase = completed_;
  Values& values = values_[size_t(phase % 2)];
  values[size_t(block.thread() % kLanes)] = mine;
  if (++arrived_ == kLanes) {
    if (work) work(values);
    arrived_ = 0;
    ++completed_;
    told_ = telling_;
    telling_ = {};
  } else {
    block.scheduler.wait_until(instruction, [this, phase] { return completed_ > phase; });
  }
  return values;
}

void WarpMeeting::sync() {
  Block& block = here();
  if (block.faults.forgets_syncwarp()) return;
  telling_.learn(block.clock());
  block.clock().tick(block.actor());
  exchange("__syncwarp", 0);
  block.clock().learn(told_);
}

}  // namespace fa3::machine
