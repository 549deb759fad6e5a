// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/machine/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "core/float_environment.h"

namespace fa3::cpu {
namespace {

// One loop at a time; workers sleep between loops. Never destroyed: threads may outlive main().
class Pool {
 public:
  // Tasks [first_task, num_tasks). False if another loop is running; nothing was done then.
  bool try_run(int64_t first_task, int64_t num_tasks, int num_threads,
               const std::function<void(int64_t, int)>& body) {
    std::unique_lock loop(one_loop_, std::try_to_lock);
    if (!loop.owns_lock()) return false;
    const int wanted = static_cast<int>(std::min<int64_t>(num_threads, num_tasks - first_task)) - 1;
    {
      std::lock_guard lock(mutex_);
      grow(wanted);
      body_ = &body;
      num_tasks_ = num_tasks;
      next_task_.store(first_task, std::memory_order_relaxed);
      helpers_wanted_ = std::min(wanted, num_workers_);
      helpers_running_ = helpers_wanted_;
    }
    wake_.notify_all();
    drain(0);
    std::unique_lock lock(mutex_);
    helpers_wanted_ = helpers_wanted_ - claim_unstarted();
    done_.wait(lock, [this] { return helpers_running_ == 0; });
    body_ = nullptr;
    return true;
  }

 private:
  // The tasks are gone: helpers that have not woken up yet need not.
  int claim_unstarted() {
    const int unstarted = helpers_wanted_;
    helpers_running_ -= unstarted;
    return unstarted;
  }

  void grow(int wanted) {
    while (num_workers_ < wanted) {
      try {
        std::thread([this] { work(); }).detach();
      } catch (const std::exception&) {
        return;  // no thread or no memory for one: slower, still right
      }
      ++num_workers_;
    }
  }

  void work() {
    const DefaultFloatEnvironment environment;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return helpers_wanted_ > 0; });
      const int worker = helpers_wanted_--;  // 1 .. wanted
      lock.unlock();
      drain(worker);
      lock.lock();
      if (--helpers_running_ == 0) done_.notify_one();
    }
  }

  void drain(int worker) {
    for (;;) {
      const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
      if (task >= num_tasks_) return;
      (*body_)(task, worker);
    }
  }

  std::mutex one_loop_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  int64_t num_tasks_ = 0;
  std::atomic<int64_t> next_task_ = 0;
  int num_workers_ = 0;
  int helpers_wanted_ = 0;   // still to start on this loop
  int helpers_running_ = 0;  // started or still to start
};

// A fork copies the pool's memory but not its threads: the child starts with a new pool, in the
// same place, whatever state its parent's was in. The first is made as the library is loaded,
// before the statics of C++: were it made on first use, a fork could come in the middle of that.
// (Nor could a FirstUse register for forks: older C libraries keep forks' list locked while they
// wait for its lock.)
alignas(Pool) constinit std::byte g_pool[sizeof(Pool)] = {};

void make_pool() {
  new (g_pool) Pool;
}

[[gnu::constructor(101)]] void make_first_pool() {
  make_pool();
  pthread_atfork(nullptr, nullptr, make_pool);
}

Pool& pool() {
  return *std::launder(reinterpret_cast<Pool*>(g_pool));
}

}  // namespace

void parallel_for(int64_t num_tasks, int num_threads,
                  const std::function<void(int64_t, int)>& body) {
  if (num_tasks <= 0) return;
  const DefaultFloatEnvironment environment;
  for (int64_t task = 0; task < num_tasks; ++task) {
    const bool shares = num_threads > 1 && num_tasks - task > 1;
    if (shares && pool().try_run(task, num_tasks, num_threads, body)) return;
    body(task, 0);
  }
}

}  // namespace fa3::cpu
