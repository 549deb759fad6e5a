// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/machine/parallel.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace fa3::test {
namespace {

// How often every task ran, and the largest worker number seen.
struct Counted {
  std::vector<int> runs;
  int largest_worker = 0;
};

Counted count(int64_t num_tasks, int num_threads) {
  std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
  std::atomic<int> largest = 0;
  cpu::parallel_for(num_tasks, num_threads, [&](int64_t task, int worker) {
    runs[static_cast<size_t>(task)].fetch_add(1);
    for (int seen = largest; worker > seen && !largest.compare_exchange_weak(seen, worker);) {
    }
  });
  return {std::vector<int>(runs.begin(), runs.end()), largest};
}

TEST(ParallelFor, runs_every_task_once_on_named_workers) {
  for (int64_t num_tasks : {0, 1, 2, 3, 17, 1000}) {
    for (int num_threads : {1, 2, 5, 16}) {
      const Counted counted = count(num_tasks, num_threads);
      EXPECT_EQ(counted.runs, std::vector<int>(static_cast<size_t>(num_tasks), 1));
      EXPECT_LT(counted.largest_worker, num_threads);
    }
  }
}

TEST(ParallelFor, returns_after_the_last_task_however_often_it_is_called) {
  for (int i = 0; i < 2000; ++i) {
    std::atomic<int> done = 0;
    cpu::parallel_for(4, 3, [&](int64_t, int) { done.fetch_add(1); });
    ASSERT_EQ(done, 4) << "call " << i;
  }
}

TEST(ParallelFor, one_thread_means_the_calling_thread_in_ascending_order) {
  std::vector<int64_t> order;
  const std::thread::id caller = std::this_thread::get_id();
  cpu::parallel_for(50, 1, [&](int64_t task, int worker) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(worker, 0);
    order.push_back(task);
  });
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(ParallelFor, loops_of_several_host_threads_do_not_mix) {
  std::vector<std::thread> hosts;
  for (int host = 0; host < 4; ++host) {
    hosts.emplace_back([] {
      for (int i = 0; i < 200; ++i) {
        EXPECT_EQ(count(23, 3).runs, std::vector<int>(23, 1));
      }
    });
  }
  for (std::thread& host : hosts) host.join();
}

// The second loop begins alone and is joined by the pool's threads once the first loop has ended.
TEST(ParallelFor, gets_helpers_when_another_loop_ends) {
  std::atomic<bool> first_runs = false, first_may_end = false;
  std::thread first([&] {
    cpu::parallel_for(2, 2, [&](int64_t, int) {
      first_runs = true;
      while (!first_may_end) std::this_thread::yield();
    });
  });
  while (!first_runs) std::this_thread::yield();
  std::atomic<int> running = 0;
  std::atomic<bool> met = false;
  cpu::parallel_for(4, 2, [&](int64_t task, int) {
    if (task == 0) {
      first_may_end = true;
      first.join();
      return;
    }
    if (++running == 2) met = true;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (!met && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    --running;
  });
  EXPECT_TRUE(met);
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow threads into a forked child
TEST(ParallelFor, works_in_a_forked_child) {
  count(16, 4);  // the pool has threads now, which the child will not have
  const pid_t child = fork();
  if (child == 0) _exit(count(100, 4).runs == std::vector<int>(100, 1) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

}  // namespace
}  // namespace fa3::test
