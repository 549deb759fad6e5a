// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/machine/features.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace fa3::cpu {
namespace {

struct Cache {
  std::string level, type, size;
};

// What is found under a root whose first core has these caches.
int64_t l2_among(const std::vector<Cache>& caches) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "fa3_l2_cache";
  for (size_t i = 0; i < caches.size(); ++i) {
    const std::filesystem::path folder =
        root / ("sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "level") << caches[i].level << "\n";
    std::ofstream(folder / "type") << caches[i].type << "\n";
    std::ofstream(folder / "size") << caches[i].size << "\n";
  }
  const int64_t bytes = l2_cache_bytes_under(root.string());
  std::filesystem::remove_all(root);
  return bytes;
}

TEST(L2Cache, has_the_size_that_the_system_says) {
  const Cache data{"1", "Data", "64K"}, code{"1", "Instruction", "64K"},
      third{"3", "Unified", "116736K"};
  EXPECT_EQ(l2_among({data, code, {"2", "Unified", "1024K"}, third}), 1 << 20);
  EXPECT_EQ(l2_among({{"2", "Instruction", "512K"}, {"2", "Data", "2M"}}), 2 << 20);
  EXPECT_EQ(l2_among({data, code, third}), 0);
  EXPECT_EQ(l2_among({{"2", "Unified", ""}}), 0);
  EXPECT_EQ(l2_among({}), 0);
}

TEST(L2Cache, is_between_what_any_core_has) {
  EXPECT_GE(l2_cache_bytes(), 256 << 10);
  EXPECT_LE(l2_cache_bytes(), 4 << 20);
}

}  // namespace
}  // namespace fa3::cpu
