// SPDX-License-Identifier: Apache-2.0
#include "core/workspace.h"

#include <gtest/gtest.h>

#include <array>

namespace fa3 {
namespace {

struct Parts {
  float* sums;
  char* flags;
  double* rest;
};

constexpr Parts allocate(int64_t rows, WorkspaceAllocator& allocator) {
  return {allocator.take<float>(rows, 3), allocator.take<char>(1), allocator.take<double>(rows)};
}

TEST(Workspace, is_counted_by_the_description_that_cuts_it) {
  alignas(256) std::array<std::byte, 4096> memory{};
  for (int64_t rows : {0, 1, 5, 40}) {
    const int64_t bytes =
        bytes_of([&](WorkspaceAllocator& allocator) { allocate(rows, allocator); });
    WorkspaceAllocator allocator(memory.data());
    const Parts parts = allocate(rows, allocator);
    ASSERT_EQ(allocator.bytes(), bytes);
    const auto at = [&](const void* part) {
      return static_cast<const std::byte*>(part) - memory.data();
    };
    EXPECT_EQ(at(parts.sums), 0);
    EXPECT_GE(at(parts.flags), at(parts.sums + rows * 3));
    EXPECT_GE(at(parts.rest), at(parts.flags + 1));
    EXPECT_GE(bytes, at(parts.rest + rows));
    for (const void* part : {static_cast<void*>(parts.flags), static_cast<void*>(parts.rest)}) {
      EXPECT_EQ(at(part) % WorkspaceAllocator::kAlignment, 0);
    }
  }
}

TEST(Workspace, is_counted_without_memory_also_at_compile_time) {
  static_assert(bytes_of([](WorkspaceAllocator& allocator) { allocate(16, allocator); }) ==
                192 + 64 + 128);
  WorkspaceAllocator count;
  EXPECT_EQ(allocate(16, count).sums, nullptr);
}

TEST(Workspace, beyond_any_memory_is_a_size_that_is_refused) {
  constexpr int64_t kMany = int64_t{1} << 40;
  EXPECT_EQ(capped_product(kMany, kMany, kMany), kTooManyBytes);
  EXPECT_EQ(capped_product(kMany, kMany, int64_t{0}), 0);
  EXPECT_EQ(capped_product(kTooManyBytes - 1, int64_t{1}), kTooManyBytes - 1);
  WorkspaceAllocator count;
  for (int i = 0; i < 100; ++i) count.take<double>(kMany, kMany);
  EXPECT_EQ(count.bytes(), kTooManyBytes);
}

}  // namespace
}  // namespace fa3
