// SPDX-License-Identifier: Apache-2.0
// The catalogue of backward kernels: registers, stages and tiles of every row.
#include <gtest/gtest.h>

#include <vector>

#include "engine/hopper/catalogue.h"
#include "engine/hopper/config/config_text.h"
#include "engine/hopper/instances/backward_entry.h"
#include "engine/hopper/plan/backward/plan_backward.h"

namespace fa3::hopper {
namespace {

// Every main kernel, but for the element.
std::vector<BackwardConfig> configs() {
  std::vector<BackwardConfig> all;
  for (const BackwardRow& row : kBackward) {
    all.push_back(row.kernel);
    all.push_back(all.back().deterministic());
  }
  return all;
}

TEST(BackwardCatalogue, every_row_fits_the_register_file) {
  for (const BackwardConfig& c : configs()) {
    // What a launch gets: 64 K registers over its threads, in steps of 8.
    const int launched = (1 << 16) / c.threads() / 8 * 8 * (c.threads() / kWarpgroupSize);
    EXPECT_LE(c.query_registers() + c.sum_warpgroups() * c.key_registers() + c.helper_registers(),
              launched);
    EXPECT_LE(c.key_registers_used(), c.key_registers());
  }
}

TEST(BackwardCatalogue, stages_of_a_step_are_loaded_while_another_is_at_work) {
  for (const BackwardConfig& c : configs()) EXPECT_GE(c.shape.stages, 2);
}

// dQ's sums lie as those of a row for all calls, so that preprocess and postprocess may be of
// either. Rows with long sums take no calls of which one is.
TEST(BackwardCatalogue, rows_for_dense_calls_have_the_tiles_of_those_for_all) {
  for (const BackwardRow& row : kRowsForSomeDenseCalls) {
    const BackwardConfig& c = row.kernel;
    const BackwardConfig& o =
        select_backward({.head_dim = c.shape.head_dim, .head_dim_v = c.shape.head_dim_v})->kernel;
    EXPECT_TRUE(c.shape.head_dim == o.shape.head_dim && c.shape.head_dim_v == o.shape.head_dim_v);
    EXPECT_FALSE(o.pairs() || o.persistent() || o.has_long_sums());
    EXPECT_EQ(c.pairs() + c.persistent() + c.has_long_sums(), 1);
    EXPECT_FALSE(c.can_split_steps() || c.can_take_short_sequences());
    if (c.has_long_sums()) continue;
    EXPECT_TRUE(c.shape.block_m == o.shape.block_m && c.shape.block_n == o.shape.block_n);
    EXPECT_EQ(c.dq_parts() * c.ctas(), o.dq_parts());
  }
}

TEST(BackwardCatalogue, parts_that_do_not_fit_each_other_make_no_row) {
  const BackwardConfig dense;
  const auto fits = [&](const auto& change) {
    BackwardConfig c = dense;
    change(c);
    return c.is_consistent();
  };
  EXPECT_TRUE(dense.is_consistent() && dense.with_step_splits().is_consistent());
  EXPECT_TRUE(dense.with(Element::kFp16, Variant::kCapped).is_consistent());
  EXPECT_FALSE(fits([](auto& c) { c.scores = Scores::kCapped; }));
  EXPECT_FALSE(fits([](auto& c) { c.tiles = Tiles::kListed; }));
  EXPECT_FALSE(fits([](auto& c) { c.weights = Weights::kMaskBits; }));
  EXPECT_FALSE(fits([](auto& c) { c.tiles = Tiles::kStreamK; }));
  EXPECT_FALSE(fits([](auto& c) { c.tiles = Tiles::kVarlen, c.sharing = Sharing::kPersistent; }));
  EXPECT_FALSE(
      fits([](auto& c) { c.gradients = Gradients::kFloat32, c.sharing = Sharing::kPairs; }));
}

// Entries are found by the row's place in the array.
TEST(BackwardCatalogue, every_built_row_has_its_own_kernels) {
  for (const BackwardRow& row : kBackward) {
    if (!row.built) continue;
    for (const Element element : {Element::kFp16, Element::kBf16}) {
      const BackwardKernel kernel = backward_kernel_at(row, element);
      EXPECT_EQ(cuda::text_of(kernel.config), cuda::text_of(kernel_of(row, element)));
      EXPECT_NE(kernel.main, nullptr);
      const bool has_splits = kernel.splits.main != nullptr;
      EXPECT_EQ(has_splits, row.kernel.can_split_steps() || (is_for_some_dense_calls(row.kernel) &&
                                                             !row.kernel.has_long_sums()));
      if (has_splits) {
        EXPECT_EQ(kernel.splits.config.shape.block_m, row.kernel.shape.block_m);
      }
    }
  }
}

}  // namespace
}  // namespace fa3::hopper
