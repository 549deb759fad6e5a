// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_limits.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "core/error.h"

namespace fa3 {
namespace {

// quota and period in microseconds; a quota of 0 or -1 is none.
int cpus_of(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return kNoCpuLimit;
  const int64_t cpus = quota / period + (quota % period != 0);
  return static_cast<int>(std::min<int64_t>(cpus, kNoCpuLimit));
}

int64_t number_in(const std::string& path) {
  int64_t number = 0;
  std::ifstream(path) >> number;  // 0 where there is no file or no number
  return number;
}

int limit_of_version_2(const std::string& group) {
  int64_t quota = 0, period = 0;
  std::ifstream(group + "/cpu.max") >> quota >> period;  // "max 100000": no number
  return cpus_of(quota, period);
}

int limit_of_version_1(const std::string& group) {
  return cpus_of(number_in(group + "/cpu.cfs_quota_us"), number_in(group + "/cpu.cfs_period_us"));
}

// The least limit of the cgroup `path` and of those above it. In a container the mount may begin at
// the process's own cgroup, and then only the last of them, the mount itself, is there.
int least_limit(const std::string& mount, std::string path, int (*limit_of)(const std::string&)) {
  int least = limit_of(mount);
  while (path.size() > 1) {
    least = std::min(least, limit_of(mount + path));
    path.resize(path.rfind('/'));
  }
  return least;
}

bool has_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

int omp_thread_limit(const char* text) {
  const long threads = text != nullptr ? std::strtol(text, nullptr, 10) : 0;
  return threads > 0 && threads < kNoCpuLimit ? static_cast<int>(threads) : kNoCpuLimit;
}

int cgroup_cpu_limit(const std::string& root) {
  int least = kNoCpuLimit;
  const std::string mounts = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");  // lines: number:controllers:path
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, least_limit(mounts, path, limit_of_version_2));
    } else if (has_cpu(controllers)) {
      const std::string mount = concat(mounts, "/", controllers);
      least = std::min(least, least_limit(mount, path, limit_of_version_1));
      least = std::min(least, least_limit(mounts + "/cpu", path, limit_of_version_1));
    }
  }
  return least;
}

}  // namespace fa3
