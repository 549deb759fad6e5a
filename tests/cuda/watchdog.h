// SPDX-License-Identifier: Apache-2.0
// A kernel whose barriers do not match hangs for ever, and with it the program that waits for it.
// This ends the program after some time, with a sentence that says what hung.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

namespace fa3::testing {

class Watchdog {
 public:
  explicit Watchdog(std::string what, int seconds = 20)
      : thread_([this, what = std::move(what), seconds] {
          std::unique_lock lock(mutex_);
          if (done_.wait_for(lock, std::chrono::seconds(seconds), [&] { return is_done_; })) return;
          std::printf("HANG: %s did not finish within %d seconds\n", what.c_str(), seconds);
          std::fflush(stdout);
          _exit(3);
        }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    done_.notify_one();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  std::thread thread_;  // last: starts when the rest is there
};

}  // namespace fa3::testing
