// SPDX-License-Identifier: Apache-2.0
//
// What a warp knows to be over. Each warp counts its own moments, each mbarrier its phases; a clock
// says up to which of them its owner has been told, by barriers, directly or through others. Two
// accesses are in order if the later warp's clock has the moment of the earlier one, whatever the
// order in which they happened to run: so a missing barrier shows in every schedule.
#pragma once

#include <algorithm>
#include <array>

namespace fa3::machine {

inline constexpr int kMostWarps = 16;
inline constexpr int kMostBarriers = 112;

// Actors are warps, then mbarriers.
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
  // What the actor does from here on is not known to those that it has told so far.
  void tick(int actor) { ++times_[size_t(actor)]; }

 private:
  std::array<int, kMostWarps + kMostBarriers> times_{};
};

}  // namespace fa3::machine
