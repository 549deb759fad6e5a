// SPDX-License-Identifier: Apache-2.0
//
// What bounds a process's threads besides its affinity mask. Next: threads.cpp.
#pragma once

#include <limits>
#include <string>

namespace fa3 {

constexpr int kNoCpuLimit = std::numeric_limits<int>::max();

// The first number of OMP_NUM_THREADS, whose value `text` is; kNoCpuLimit where it has none.
int omp_thread_limit(const char* text);

// CPUs, rounded up, that the cgroups of this process may use at a time: cpu.max of version 2,
// cpu.cfs_quota_us of version 1, the least on the way to the root. /proc and /sys lie under `root`.
int cgroup_cpu_limit(const std::string& root);

}  // namespace fa3
