// SPDX-License-Identifier: Apache-2.0
//
// The backward's plans: budgets of the table, which row a shape gets, what follows for launches and
// workspace, and which rows the CTAs of a grid have.
#include "engine/ampere/plan/plan.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "engine/ampere/backward/row_block.h"
#include "engine/ampere/plan/backward_plan.h"
#include "engine/ampere/plan/forward_plan.h"

namespace fa3::ampere {
namespace {

TEST(AmpereBackwardRows, warps_have_whole_fragments_and_their_sums_fit_registers) {
  for (const auto& [c, why, built] : kBackward) {
    EXPECT_EQ(c.keys_of_warp() % kRowsPerWarp, 0);
    EXPECT_EQ(c.block_m % 16, 0);
    EXPECT_LE(c.head_dim * c.keys_of_warp() / kWarpSize, 128);
    EXPECT_LE(c.head_dim_v * c.keys_of_warp() / kWarpSize, 128);
  }
}

TEST(AmpereBackwardRows, warps_share_every_element_of_dq_once) {
  for (const auto& [c, why, built] : kBackward) {
    const DqLayout dq = c.dq();
    std::set<std::pair<int, int>> pieces;  // 16 rows by 8 columns
    for (int warp = 0; warp < kBackwardWarps; ++warp) {
      for (int tile = 0; tile < dq.row_tiles(); ++tile) {
        for (int block = 0; block < dq.column_blocks(); ++block) {
          EXPECT_TRUE(pieces.emplace(dq.row(warp, tile), dq.column(warp, block)).second);
        }
      }
    }
    EXPECT_EQ(pieces.size(), size_t(c.block_m / 16 * c.head_dim / 8));
    EXPECT_EQ(kBackwardWarps * dq.accumulators() * kWarpSize, dq.block_floats());
  }
}

TEST(AmpereSelectBackwardKernel, gives_the_narrowest_that_fits_head_dims_and_shared_memory) {
  std::set<const BackwardRow*> taken;
  BackwardProblem p;
  for (const int smem : {kSmallSmemBytes, kLargeSmemBytes, kLargestSmemBytes}) {
    std::set<const BackwardRow*> chosen;
    for (int64_t d = 1; d <= 257; ++d) {
      p.head_dim = p.head_dim_v = d;
      const BackwardRow* row = select_backward_kernel(p, smem);
      ASSERT_EQ(row != nullptr, d <= 256) << d;
      if (!row) continue;
      chosen.insert(row);
      const BackwardConfig& c = row->kernel;
      EXPECT_EQ(c.head_dim, (d + 63) / 64 * 64);
      EXPECT_EQ(c.smem_class == kSmallSmemBytes, smem == kSmallSmemBytes);
      EXPECT_LE(c.smem_class, smem);
    }
    EXPECT_EQ(chosen.size(), 4u);
    taken.insert(chosen.begin(), chosen.end());
  }
  EXPECT_EQ(taken.size(), kPlainRows.size());
  p.head_dim = p.head_dim_v = 64;
  EXPECT_EQ(select_backward_kernel(p, kSmallSmemBytes - 1), nullptr);
}

TEST(AmpereSelectBackwardKernel, gives_p_its_other_form_and_a_block_mask_its_own_rows) {
  BackwardProblem p;
  p.head_dim = p.head_dim_v = 128;
  const auto chosen = [&p] { return select_backward_kernel(p, kLargeSmemBytes)->kernel; };
  EXPECT_FALSE(chosen().scored);
  p.softcap = 30;
  EXPECT_TRUE(chosen().scored);
  p.softcap = 0;
  p.dropout.threshold = 1000;
  EXPECT_TRUE(chosen().scored);
  EXPECT_FALSE(chosen().block_mask);
  p.dropout = {};
  p.block_mask.on = true;
  EXPECT_TRUE(chosen().scored && chosen().block_mask);
}

BackwardPlan plan_of(const cuda::BackwardCall& call, int row = 2) {
  return plan_launches({.config = kBackward[size_t(row)].kernel}, call);
}

cuda::BackwardCall call(int64_t batches, int64_t rows, int64_t heads) {
  cuda::BackwardCall a;
  const auto span = [&](int64_t of_heads) {
    return cuda::TensorSpan{nullptr,        batches, rows, of_heads, 128, rows * of_heads * 128,
                            of_heads * 128, 128};
  };
  a.q = a.o = a.d_o = a.dq = span(heads);
  a.k = a.v = a.dk = a.dv = span(1);
  a.seqlen_q = a.seqlen_k = int(rows);
  a.sequences = batches;
  a.lengths_q = a.lengths_k = {.max = rows, .total = batches * rows};
  return a;
}

TEST(AmpereBackwardPlan, has_a_cta_for_each_block_of_rows_and_head) {
  const BackwardPlan plan = plan_of(call(3, 130, 4));
  EXPECT_EQ(plan.grids.main, 3 * 1 * 2);         // of 128 keys
  EXPECT_EQ(plan.grids.postprocess, 3 * 4 * 3);  // of 64 queries
  EXPECT_EQ(plan.grids.preprocess, 3 * 4 * 3);
  EXPECT_GE(plan.workspace.bytes, int64_t{3 * 4 * 3} * 64 * 128 * 4);
}

TEST(AmpereBackwardPlan, clears_whole_blocks_of_dq_where_these_are_larger_than_preprocess) {
  const BackwardPlan plan = plan_of(call(1, 60, 1), 0);
  ASSERT_EQ(plan.kernel.config.block_m, 128);
  EXPECT_EQ(plan.preprocess_blocks * kPreprocessRows, 128);
}

TEST(AmpereBackwardPlan, of_nothing_launches_nothing_but_what_clears_gradients) {
  EXPECT_EQ(plan_of(call(0, 0, 4)).grids.largest(), 0);
  cuda::BackwardCall no_queries = call(2, 100, 4);
  no_queries.q.rows = no_queries.o.rows = no_queries.d_o.rows = no_queries.dq.rows = 0;
  no_queries.seqlen_q = 0;
  no_queries.lengths_q = {};
  const BackwardPlan plan = plan_of(no_queries);
  EXPECT_EQ(plan.grids.preprocess, 0);
  EXPECT_EQ(plan.grids.main, 2);
  EXPECT_EQ(plan.grids.postprocess, 0);
}

TEST(AmpereBackwardPlan, deterministic_calls_have_a_counter_for_each_block_and_side) {
  cuda::BackwardCall a = call(1, 640, 2);
  const int64_t without = plan_of(a).workspace.bytes;
  a.deterministic = true;
  const BackwardPlan plan = plan_of(a);
  EXPECT_GE(plan.workspace.bytes - without, 10 * 2 * kSides * int64_t{sizeof(int)});
  EXPECT_NE(plan.workspace.dq_semaphore, cuda::kNoArray);
}

// Every row of a packed tensor belongs to one block or to the rows that none owns, whatever the
// lengths; nothing outside of the tensor does.
TEST(AmpereRowBlock, covers_packed_rows_and_never_leaves_the_tensor) {
  const std::vector<std::vector<int32_t>> lengths{
      {0, 70, 70, 200}, {0, 300, 20, 150}, {-5, 1 << 30, 7, -3}, {200, 200, 200, 200}};
  for (const std::vector<int32_t>& cu : lengths) {
    const std::vector<int32_t> used{50, -4, 1 << 30};
    Lengths l{.cu_seqlens = cu.data(), .seqused = used.data(), .max = 100, .total = 230};
    l.in_one_tensor = true;
    const RowGrid grid{l, 3, 2, 2};
    for (int number = 0; number < RowBlock::num_sequences(grid) * 2 * 2; ++number) {
      const RowBlock b = RowBlock::of(grid, number);
      EXPECT_LT(b.sequence, 4);
      EXPECT_EQ(b.batch, 0);
      EXPECT_GE(b.begin, 0);
      EXPECT_GE(b.owned, b.used);
      EXPECT_GE(b.used, 0);
      EXPECT_LE(b.used, 100);
      EXPECT_LE(b.begin + b.owned, 230);
    }
  }
}

}  // namespace
}  // namespace fa3::ampere
