// SPDX-License-Identifier: Apache-2.0
// The backward's kernel table: its budgets, and which row a shape gets.
#include "engine/hopper/backward/plan_backward.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/hopper/forward_config.h"
#include "engine/hopper/plan_forward.h"

namespace fa3::hopper {
namespace {

TEST(BackwardTable, every_row_fits_the_register_file) {
  for (const CompiledBackward& row : kBackwardTable) {
    const BackwardConfig& c = row.config;
    // What a launch gets: 64 K registers over its threads, in steps of 8.
    const int launched = (1 << 16) / c.threads() / 8 * 8 * (c.threads() / kWarpgroupSize);
    EXPECT_LE(c.query_registers() + (c.threads() / kWarpgroupSize - 1) * c.key_registers(),
              launched);
    EXPECT_LE(c.key_registers_used(), c.key_registers());
  }
}

TEST(BackwardTable, slots_of_a_step_are_loaded_while_another_is_at_work) {
  for (const CompiledBackward& row : kBackwardTable) EXPECT_GE(row.config.stages, 2);
}

// Whoever can run a forward can train with it.
TEST(ChooseBackwardRow, gives_the_narrowest_that_fits_wherever_the_forward_has_a_kernel) {
  std::set<int> chosen;
  for (int64_t d = 8; d <= 264; d += 8) {
    for (int64_t dv = 8; dv <= 264; dv += 8) {
      const int row = choose_backward_row(d, dv);
      const bool forward = choose_row({.head_dim = d, .head_dim_v = dv, .keys = 1000}) != kNoRow;
      ASSERT_EQ(row != kNoBackwardRow, forward) << d << "/" << dv;
      if (row == kNoBackwardRow) continue;
      chosen.insert(row);
      const BackwardConfig& c = kBackwardTable[row].config;
      for (const CompiledBackward& other : kBackwardTable) {
        const BackwardConfig& o = other.config;
        if (o.head_dim < d || o.head_dim_v < dv) continue;
        EXPECT_LE(c.head_dim + c.head_dim_v, o.head_dim + o.head_dim_v) << d << "/" << dv;
      }
    }
  }
  EXPECT_EQ(chosen.size(), kBackwardTable.size()) << "a kernel that nothing chooses is built";
}

BackwardArguments arguments(int64_t batches, int64_t rows, int64_t heads) {
  BackwardArguments a;
  a.q = {.batches = batches, .rows = rows, .heads = heads, .columns = 128};
  a.k = a.q;
  return a;
}

TEST(BackwardWorkspace, has_a_float_for_each_padded_element_of_dq_and_two_numbers_a_row) {
  const BackwardConfig c = kBackwardTable[size_t(choose_backward_row(128, 128))].config;
  const int64_t rows = 3 * 5 * 128;  // 100 rows are padded to 2 blocks
  EXPECT_EQ(backward_workspace_bytes(c, arguments(3, 100, 5)), rows * 128 * 4 + 2 * rows * 4);
}

TEST(BackwardWorkspace, of_huge_extents_is_too_many_bytes_and_no_overflow) {
  const BackwardConfig c = kBackwardTable[0].config;
  EXPECT_GE(backward_workspace_bytes(c, arguments(int64_t{1} << 40, int64_t{1} << 30, 1 << 20)),
            kTooManyBytes);
}

}  // namespace
}  // namespace fa3::hopper
