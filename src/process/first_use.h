// SPDX-License-Identifier: Apache-2.0
// What a process works out once, when it is first asked for. A static of a function would do, but
// for forks: one that comes while another thread makes the static leaves a child that waits for
// ever for that thread, which it has not got. Here a fork waits until the value is there.
#pragma once

#include <atomic>

namespace fa3 {

// While one of these lives, no other thread has one, and none forks.
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

// For namespaces and statics of functions: it needs no initialisation of its own. T can be copied.
template <class T>
class FirstUse {
 public:
  template <class Make>
  const T& get(const Make& make) {
    if (!known_.load(std::memory_order_acquire)) {
      const NoFork no_fork;
      if (!known_.load(std::memory_order_relaxed)) {
        value_ = make();
        known_.store(true, std::memory_order_release);
      }
    }
    return value_;
  }

 private:
  T value_{};
  std::atomic<bool> known_ = false;
};

}  // namespace fa3
