// SPDX-License-Identifier: Apache-2.0
#include "core/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "core/cpu_limits.h"

namespace fa3 {
namespace {

int cores_of_process() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Found by whoever asks first. Two who ask at once find the same, so nobody waits for another, and
// a fork in between does no harm.
int limit_of_process() {
  static std::atomic<int> s_limit = 0;
  int limit = s_limit.load(std::memory_order_relaxed);
  if (limit == 0) {
    limit = std::min(omp_thread_limit(std::getenv("OMP_NUM_THREADS")), cgroup_cpu_limit(""));
    s_limit.store(limit, std::memory_order_relaxed);
  }
  return limit;
}

}  // namespace

int available_threads() {
  return std::max(1, std::min(cores_of_process(), limit_of_process()));
}

}  // namespace fa3
