// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace fa3 {
namespace {

struct File {
  std::string path, text;
};

// The limit under a root that holds these files.
int limit_among(const std::vector<File>& files) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) /
                                     testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::create_directories(root);
  for (const File& file : files) {
    std::filesystem::create_directories((root / file.path).parent_path());
    std::ofstream(root / file.path) << file.text;
  }
  const int limit = cgroup_cpu_limit(root.string());
  std::filesystem::remove_all(root);
  return limit;
}

constexpr const char* kGroups = "proc/self/cgroup";

TEST(CgroupLimit, is_the_quota_over_the_period_rounded_up) {
  for (const auto& [text, cpus] :
       std::vector<std::pair<std::string, int>>{{"200000 100000\n", 2},
                                                {"250000 100000\n", 3},
                                                {"10000 100000\n", 1},
                                                {"max 100000\n", kNoCpuLimit},
                                                {"", kNoCpuLimit},
                                                {"100000 0\n", kNoCpuLimit}}) {
    const int limit =
        limit_among({{kGroups, "0::/jobs/mine\n"}, {"sys/fs/cgroup/jobs/mine/cpu.max", text}});
    EXPECT_EQ(limit, cpus) << text;
  }
}

TEST(CgroupLimit, is_the_least_on_the_way_to_the_root) {
  const int limit = limit_among({{kGroups, "0::/jobs/mine\n"},
                                 {"sys/fs/cgroup/cpu.max", "900000 100000\n"},
                                 {"sys/fs/cgroup/jobs/cpu.max", "300000 100000\n"},
                                 {"sys/fs/cgroup/jobs/mine/cpu.max", "500000 100000\n"}});
  EXPECT_EQ(limit, 3);
}

TEST(CgroupLimit, is_found_where_a_container_shows_only_its_own_cgroup) {
  EXPECT_EQ(limit_among({{kGroups, "0::/\n"}, {"sys/fs/cgroup/cpu.max", "400000 100000\n"}}), 4);
  const int limit = limit_among({{kGroups, "3:memory:/docker/x\n2:cpu,cpuacct:/docker/x\n"},
                                 {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n"},
                                 {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "50000\n"}});
  EXPECT_EQ(limit, 3);
}

TEST(CgroupLimit, of_version_1_may_be_none) {
  const int limit = limit_among({{kGroups, "2:cpuset:/x\n1:cpu:/x\n"},
                                 {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n"},
                                 {"sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"}});
  EXPECT_EQ(limit, kNoCpuLimit);
}

TEST(CgroupLimit, is_none_where_nothing_or_nonsense_is_said) {
  EXPECT_EQ(limit_among({}), kNoCpuLimit);
  EXPECT_EQ(limit_among({{kGroups, "no colons\n0:\n::\n0::relative\n"}}), kNoCpuLimit);
}

TEST(OmpThreadLimit, is_the_first_number_of_the_variable) {
  EXPECT_EQ(omp_thread_limit("3"), 3);
  EXPECT_EQ(omp_thread_limit("4,3,2"), 4);
  for (const char* none : {static_cast<const char*>(nullptr), "", "0", "-2", "many"}) {
    EXPECT_EQ(omp_thread_limit(none), kNoCpuLimit);
  }
}

}  // namespace
}  // namespace fa3
