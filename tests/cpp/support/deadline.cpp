// SPDX-License-Identifier: Apache-2.0
#include "support/deadline.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

namespace fa3::test {
namespace {

// Describes the call at work, for whoever ends the process.
char g_at_work[2048];

extern "C" void say_what_died(int signal_number) {
  const ssize_t written = write(STDERR_FILENO, g_at_work, std::strlen(g_at_work));
  static_cast<void>(written);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void watch_signals() {
  static const bool once = [] {
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(number, &say_what_died);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

struct Deadline::State {
  std::mutex mutex;
  std::condition_variable done;
  bool is_done = false;
  std::thread watch;
};

Deadline::Deadline(const std::string& what, int seconds) : state_(std::make_unique<State>()) {
  watch_signals();
  std::snprintf(g_at_work, sizeof g_at_work, "died in: %s\n", what.c_str());
  state_->watch = std::thread([state = state_.get(), what, seconds] {
    std::unique_lock lock(state->mutex);
    const auto limit = std::chrono::seconds(seconds);
    if (state->done.wait_for(lock, limit, [&] { return state->is_done; })) return;
    std::fprintf(stderr, "not done after %d s: %s\n", seconds, what.c_str());
    std::_Exit(1);
  });
}

Deadline::~Deadline() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_done = true;
  }
  state_->done.notify_one();
  state_->watch.join();
  g_at_work[0] = '\0';
}

}  // namespace fa3::test
