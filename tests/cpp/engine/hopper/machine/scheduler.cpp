// SPDX-License-Identifier: Apache-2.0
#include "scheduler.h"

#include "block.h"
#include "cuda_words.h"
#include "failure.h"

fa3::machine::Index threadIdx, blockIdx, gridDim;

namespace fa3::machine {
namespace {

constexpr int64_t kMostSwitches = 20'000'000;
constexpr size_t kStackBytes = 256 << 10;

}  // namespace

Scheduler::Scheduler(const Setting& setting, int warps, const std::function<void()>& body)
    : pace_(setting.pace), body_(body), random_(setting.seed), fibres_(size_t(warps)) {
  for (int w = 0; w < warps; ++w) {
    Fibre& fibre = fibres_[size_t(w)];
    fibre.number = w;
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
  constexpr int kThreadsPerWarp = 32;
  running_ = &fibre;
  threadIdx.x = unsigned(fibre.number * kThreadsPerWarp);
  swapcontext(&scheduler_, &fibre.context);
}

// Lets one actor do something; false if nobody is left.
bool Scheduler::step() {
  std::vector<Fibre*> able;
  std::vector<double> weights;
  bool anybody = false;
  for (Fibre& fibre : fibres_) {
    if (fibre.finished) continue;
    anybody = true;
    if (fibre.can_go_on && !fibre.can_go_on()) continue;
    able.push_back(&fibre);
    weights.push_back(pace_.weight(fibre.number));
  }
  if (!anybody && events_.empty()) return false;
  if (able.empty() && events_.empty()) fail("deadlock:", who_waits());
  if (!events_.empty()) weights.push_back(pace_.engines);
  const size_t choice = std::discrete_distribution<size_t>(weights.begin(), weights.end())(random_);
  if (++switches_ > kMostSwitches) fail("nobody comes to an end");
  if (choice < able.size()) {
    switch_to(*able[choice]);
  } else {
    const size_t which = random_() % events_.size();
    const std::function<void()> event = std::move(events_[which]);
    events_.erase(events_.begin() + ptrdiff_t(which));
    event();
  }
  return true;
}

std::string Scheduler::who_waits() const {
  std::string text;
  for (const Fibre& fibre : fibres_) {
    if (!fibre.finished) {
      text += " warp " + std::to_string(fibre.number) + " waits for " + fibre.waits_for + ";";
    }
  }
  return text;
}

}  // namespace fa3::machine
