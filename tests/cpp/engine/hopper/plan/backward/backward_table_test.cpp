// SPDX-License-Identifier: Apache-2.0
// The backward's tables of kernels: registers, stages and tiles of every row.
#include <gtest/gtest.h>

#include <vector>

#include "engine/hopper/plan/backward/plan_backward.h"
#include "engine/hopper/tables/dense_backward_table.h"
#include "engine/hopper/tables/wide_backward_table.h"

namespace fa3::hopper {
namespace {

// Every config that is built, but for the element.
std::vector<BackwardConfig> configs() {
  std::vector<BackwardConfig> all;
  for (const BackwardInstance& row : kBackwardTable) {
    for (int variant = 0; variant < kNumVariants; ++variant) {
      all.push_back(row.config.with(Element::kBf16, Variant(variant)));
      all.push_back(all.back().deterministic());
    }
  }
  for (const BackwardInstance& row : kDenseBackwardTable) {
    all.push_back(row.config.with(Element::kBf16, Variant::kDense));
    all.push_back(all.back().deterministic());
  }
  for (const BackwardInstance& row : kWideBackwardTable) {
    all.push_back(row.config.with(Element::kBf16, row.config.variant));
    all.push_back(all.back().deterministic());
  }
  return all;
}

TEST(BackwardTable, every_row_fits_the_register_file) {
  for (const BackwardConfig& c : configs()) {
    // What a launch gets: 64 K registers over its threads, in steps of 8.
    const int launched = (1 << 16) / c.threads() / 8 * 8 * (c.threads() / kWarpgroupSize);
    EXPECT_LE(c.query_registers() + c.sum_warpgroups() * c.key_registers() + c.helper_registers(),
              launched);
    EXPECT_LE(c.key_registers_used(), c.key_registers());
  }
}

TEST(BackwardTable, stages_of_a_step_are_loaded_while_another_is_at_work) {
  for (const BackwardConfig& c : configs()) EXPECT_GE(c.stages, 2);
}

// dQ's sums lie as those of a row for all calls, so that preprocess and postprocess may be of
// either.
TEST(BackwardTable, rows_for_dense_calls_have_the_tiles_of_those_for_all) {
  for (const BackwardInstance& row : kDenseBackwardTable) {
    const BackwardConfig& c = row.config;
    const auto of_one = size_t(select_backward_kernel(c.head_dim, c.head_dim_v));
    const BackwardConfig& o = kBackwardTable[of_one].config;
    EXPECT_TRUE(c.head_dim == o.head_dim && c.head_dim_v == o.head_dim_v);
    EXPECT_TRUE(c.block_m == o.block_m && c.block_n == o.block_n && !o.pairs() && !o.persistent);
    EXPECT_TRUE(c.pairs() != c.persistent);
    EXPECT_EQ(c.dq_parts() * c.ctas(), o.dq_parts());
    EXPECT_FALSE(c.can_split_steps() || c.can_take_short_sequences());
  }
}

}  // namespace
}  // namespace fa3::hopper
