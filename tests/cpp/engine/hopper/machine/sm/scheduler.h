// SPDX-License-Identifier: Apache-2.0
//
// Threads as fibres, one of which runs at a time: which warp is drawn at random wherever others
// could see the difference. Where all lanes are modelled, those of a warp run one after the other
// until each waits for something. Beside them events, which happen at some time: copies that
// arrive.
#pragma once

#include <ucontext.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lanes.h"
#include "machine.h"

namespace fa3::machine {

class Scheduler {
 public:
  // Schedules `ctas` with so many warps each.
  Scheduler(const Setting& setting, int ctas, int warps, const std::function<void()>& body);

  // Until all threads have ended and all events have happened. Returns what went wrong, or "".
  std::string run();

  // Who runs: its CTA, and its number among the CTA's modelled threads.
  int cta() const { return running_->number / threads_; }
  int thread() const { return running_->number % threads_; }
  int threads() const { return threads_; }
  std::mt19937& random() { return random_; }
  int64_t switches() const { return switches_; }

  // Others may go first.
  void yield();
  void wait_until(const std::string& what, const std::function<bool()>& can_go_on);
  void later(std::function<void()> event) { events_.push_back(std::move(event)); }

 private:
  struct Fibre {
    int number = 0;
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    std::function<bool()> can_go_on;  // empty: it can
    std::string waits_for;
    bool finished = false;

    bool able() const { return !finished && (!can_go_on || can_go_on()); }
  };

  static void enter();
  void switch_away();
  void switch_to(Fibre& fibre);
  Fibre* able_lane(int warp);
  void run_warp(int warp, Fibre* lane);
  bool step();
  std::string who_waits() const;

  const Setting& setting_;
  const Pace& pace_;
  const int threads_;  // of a CTA
  std::function<void()> body_;
  std::mt19937 random_;
  std::uniform_real_distribution<double> uniform_;
  std::vector<Fibre> fibres_;
  std::vector<int> next_lane_;  // of each warp
  std::vector<std::function<void()>> events_;
  ucontext_t scheduler_;
  Fibre* running_ = nullptr;
  int64_t switches_ = 0;
  std::string error_;
};

}  // namespace fa3::machine
