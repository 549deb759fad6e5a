// SPDX-License-Identifier: Apache-2.0
//
// Warps as fibres, one of which runs at a time: which one is drawn at random wherever others could
// see the difference. Beside them events, which happen at some time: copies that arrive.
#pragma once

#include <ucontext.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "machine.h"

namespace fa3::machine {

class Scheduler {
 public:
  Scheduler(const Setting& setting, int warps, const std::function<void()>& body);

  // Until all warps have ended and all events have happened. Returns what went wrong, or "".
  std::string run();

  int warp() const { return running_->number; }
  int warps() const { return int(fibres_.size()); }
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
  };

  static void enter();
  void switch_away();
  void switch_to(Fibre& fibre);
  bool step();
  std::string who_waits() const;

  const Pace& pace_;
  std::function<void()> body_;
  std::mt19937 random_;
  std::uniform_real_distribution<double> uniform_;
  std::vector<Fibre> fibres_;
  std::vector<std::function<void()>> events_;
  ucontext_t scheduler_;
  Fibre* running_ = nullptr;
  int64_t switches_ = 0;
  std::string error_;
};

}  // namespace fa3::machine
