// SPDX-License-Identifier: Apache-2.0
//
// What a thread knows to be over. Each thread counts its own moments, each mbarrier its phases; a
// clock says up to which of them its owner has been told, by barriers, directly or through others.
// Two accesses are in order if the later thread's clock has the moment of the earlier one, whatever
// the order in which they happened to run: so a missing barrier shows in every schedule. "Thread"
// is a modelled one (lanes.h): a warp, or a lane.
#pragma once

#include <algorithm>
#include <array>

#include "lanes.h"

namespace fa3::machine {

// Threads of a CTA; and how many CTAs run beside each other.
inline constexpr int kMostThreads = kAllLanes ? FA3_MODEL_WARPS * kLanes : 16;
inline constexpr int kMostBarriers = kAllLanes ? 104 : 112;
inline constexpr int kMostCtas = 4;

// Actors are the threads of all CTAs, then their mbarriers.
constexpr int actor_of_thread(int cta, int thread) {
  return cta * kMostThreads + thread;
}
constexpr int actor_of_barrier(int cta, int barrier) {
  return kMostCtas * kMostThreads + cta * kMostBarriers + barrier;
}
struct Moment {
  int actor = 0;
  int time = 0;
  bool operator==(const Moment&) const = default;
};

class Clock {
 public:
  bool has(Moment m) const { return times_[size_t(m.actor)] >= m.time; }
  Moment now(int actor) const { return {actor, times_[size_t(actor)]}; }
  void learn(Moment m) { times_[size_t(m.actor)] = std::max(times_[size_t(m.actor)], m.time); }
  void learn(const Clock& other) {
    for (size_t i = 0; i < times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
  }
  // Learns mbarriers alone: phases are over once a thread has seen their end, whether or not what
  // it has written is seen.
  void learn_phases(const Clock& other) {
    for (size_t i = size_t(actor_of_barrier(0, 0)); i < times_.size(); ++i) {
      times_[i] = std::max(times_[i], other.times_[i]);
    }
  }
  // What the actor does from here on is not known to those that it has told so far.
  void tick(int actor) { ++times_[size_t(actor)]; }

 private:
  std::array<int, kMostCtas*(kMostThreads + kMostBarriers)> times_{};
};

}  // namespace fa3::machine
