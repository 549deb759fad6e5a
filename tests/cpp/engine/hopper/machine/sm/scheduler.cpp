// SPDX-License-Identifier: Apache-2.0
#include "sm/scheduler.h"

#include <algorithm>

#include "cuda_words.h"
#include "failure.h"
#include "sm/block.h"

fa3::machine::Index threadIdx, blockIdx, blockDim, gridDim;

namespace fa3::machine {
namespace {

constexpr int64_t kMostSwitches = 20'000'000;
constexpr size_t kStackBytes = (kAllLanes ? 64 : 256) << 10;

}  // namespace

Scheduler::Scheduler(const Setting& setting, int ctas, int warps, const std::function<void()>& body)
    : setting_(setting),
      pace_(setting.pace),
      threads_(warps * kLanes),
      body_(body),
      random_(setting.seed),
      fibres_(size_t(ctas * threads_)),
      next_lane_(size_t(ctas * warps)) {
  for (size_t i = 0; i < fibres_.size(); ++i) {
    Fibre& fibre = fibres_[i];
    fibre.number = int(i);
    fibre.stack.reset(new char[kStackBytes]);
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack.get();
    fibre.context.uc_stack.ss_size = kStackBytes;
    fibre.context.uc_link = &scheduler_;
    makecontext(&fibre.context, enter, 0);
  }
}

void Scheduler::enter() {
  Scheduler& me = here().scheduler;
  try {
    me.body_();
  } catch (const ProtocolError& error) {
    me.error_ = error.what();
  }
  me.running_->finished = true;
}

std::string Scheduler::run() {
  try {
    while (error_.empty() && step()) {
    }
  } catch (const ProtocolError& error) {
    error_ = error.what();
  }
  return error_;
}

void Scheduler::yield() {
  if (uniform_(random_) < pace_.interruption) switch_away();
}

void Scheduler::wait_until(const std::string& what, const std::function<bool()>& can_go_on) {
  yield();
  if (can_go_on()) return;
  Fibre& me = *running_;
  me.can_go_on = can_go_on;
  me.waits_for = what;
  switch_away();
  me.can_go_on = nullptr;
}

void Scheduler::switch_away() {
  swapcontext(&running_->context, &scheduler_);
}

void Scheduler::switch_to(Fibre& fibre) {
  running_ = &fibre;
  threadIdx.x = unsigned(thread() * kThreadsOfLane);
  blockIdx = here().index;
  swapcontext(&scheduler_, &fibre.context);
}

// The first that can go on, from the next one on.
Scheduler::Fibre* Scheduler::able_lane(int warp) {
  for (int i = 0; i < kLanes; ++i) {
    const int lane = (next_lane_[size_t(warp)] + i) % kLanes;
    Fibre& fibre = fibres_[size_t(warp * kLanes + lane)];
    if (fibre.able()) return &fibre;
  }
  return nullptr;
}

// Until a lane is interrupted, or each of them waits for something. Then any lane may be the next.
void Scheduler::run_warp(int warp, Fibre* lane) {
  do {
    next_lane_[size_t(warp)] = lane->number % kLanes;
    switch_to(*lane);
    const bool interrupted = !lane->finished && !lane->can_go_on;
    if (interrupted || !error_.empty()) break;
    lane = able_lane(warp);
  } while (lane != nullptr);
  if (kAllLanes) next_lane_[size_t(warp)] = int(random_() % kLanes);
}

// Lets one actor do something; false if nobody is left.
bool Scheduler::step() {
  std::vector<Fibre*> able;
  std::vector<double> weights;
  for (int warp = 0; warp < int(next_lane_.size()); ++warp) {
    Fibre* const lane = able_lane(warp);
    if (lane == nullptr) continue;
    able.push_back(lane);
    weights.push_back(pace_.weight(warp));
  }
  if (able.empty() && events_.empty()) {
    const auto finished = [](const Fibre& fibre) { return fibre.finished; };
    if (std::all_of(fibres_.begin(), fibres_.end(), finished)) return false;
    fail("deadlock:", who_waits());
  }
  if (!events_.empty()) weights.push_back(pace_.engines);
  const size_t choice = std::discrete_distribution<size_t>(weights.begin(), weights.end())(random_);
  if (++switches_ > kMostSwitches) fail("nobody comes to an end");
  if (choice < able.size()) {
    run_warp(able[choice]->number / kLanes, able[choice]);
  } else {
    const size_t which = random_() % events_.size();
    const std::function<void()> event = std::move(events_[which]);
    events_.erase(events_.begin() + ptrdiff_t(which));
    event();
  }
  if (setting_.after_step) setting_.after_step();
  return true;
}

std::string Scheduler::who_waits() const {
  std::string text;
  for (const Fibre& fibre : fibres_) {
    if (!fibre.finished) {
      text += ' ';
      text += name(fibre.number) + " waits for " + fibre.waits_for + ";";
    }
  }
  return text;
}

}  // namespace fa3::machine
