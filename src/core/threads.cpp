// SPDX-License-Identifier: Apache-2.0
#include "core/threads.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace fa3 {

int available_threads() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace fa3
