// SPDX-License-Identifier: Apache-2.0
// The backward's kernel table: its budgets, and which row a shape gets.
#include "engine/hopper/plan/plan_backward.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "engine/hopper/config/forward_config.h"
#include "engine/hopper/plan/select_kernel.h"
#include "engine/hopper/scheduler/sequence_tiles.h"

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

// Whoever can run a forward can train with it.
TEST(ChooseBackwardRow, gives_the_narrowest_that_fits_wherever_the_forward_has_a_kernel) {
  std::set<int> chosen;
  for (int64_t d = 8; d <= 264; d += 8) {
    for (int64_t dv = 8; dv <= 264; dv += 8) {
      const int row = select_backward_kernel(d, dv);
      const bool forward =
          select_kernel({.head_dim = d, .head_dim_v = dv, .keys = 1000}) != kNoKernel;
      ASSERT_EQ(row != kNoBackwardKernel, forward) << d << "/" << dv;
      if (row == kNoBackwardKernel) continue;
      chosen.insert(row);
      const BackwardConfig& c = kBackwardTable[row].config;
      for (const BackwardInstance& other : kBackwardTable) {
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
  const BackwardConfig c = kBackwardTable[size_t(select_backward_kernel(128, 128))].config;
  const int64_t rows = 3 * 5 * 128;  // 100 rows are padded to 2 blocks
  EXPECT_EQ(backward_workspace_bytes(c, arguments(3, 100, 5)), rows * 128 * 4 + 2 * rows * 4);
}

// Of varlen lengths the most that there can be, whatever the device's arrays hold.
TEST(BackwardWorkspace, of_packed_sequences_has_a_block_more_for_each) {
  const BackwardConfig c = kBackwardTable[size_t(select_backward_kernel(128, 128))].config;
  BackwardArguments a = arguments(1, 1000, 5);
  a.varlen = true;
  a.sequences = 7;
  a.lengths_q.in_one_tensor = true;
  EXPECT_EQ(backward_num_query_blocks(c, a), (16 + 7 + 1) * 5);
  EXPECT_EQ(backward_num_tiles(c, a), (8 + 7 + 1) * 5);
  const int64_t rows = (16 + 7 + 1) * 5 * 64;
  const int64_t lists = (16 + 7 + 1 + 8 + 7 + 1) * int64_t{sizeof(SequenceTiles)} + 2 * 64;
  EXPECT_EQ(backward_workspace_bytes(c, a), rows * 128 * 4 + 2 * rows * 4 + lists);
  a.has_sink = true;
  EXPECT_EQ(backward_workspace_bytes(c, a), rows * 128 * 4 + 2 * rows * 4 + lists + 512);
}

// Of four kv heads.
BackwardArguments shared_keys(int64_t batches, int64_t rows, int64_t heads) {
  BackwardArguments a = arguments(batches, rows, heads);
  a.k.heads = 4;
  a.mask.right = 0;
  return a;
}

TEST(BackwardShares, causal_key_blocks_are_split_by_query_heads) {
  const BackwardConfig c = kBackwardTable[size_t(select_backward_kernel(128, 128))].config;
  const auto shares = [&](int64_t batches, int64_t rows, int64_t heads_per_kv_head) {
    return backward_shares(c, shared_keys(batches, rows, 4 * heads_per_kv_head));
  };
  EXPECT_EQ(shares(16, 1024, 8), 4);  // so many that there are 2048 CTAs
  EXPECT_EQ(shares(4, 4096, 8), 4);
  EXPECT_EQ(shares(8, 4096, 8), 2);
  EXPECT_EQ(shares(16, 4096, 8), 1);
  EXPECT_EQ(shares(32, 1024, 8), 1);   // the sums would cost more
  EXPECT_EQ(shares(16, 1024, 6), 6);   // not 4, which are not equal
  EXPECT_EQ(shares(1, 1000, 8), 8);    // a head each
  EXPECT_EQ(shares(1, 1000, 257), 1);  // more than order.shares can hold
  EXPECT_EQ(shares(1, 1000, 1), 1);
  EXPECT_EQ(shares(0, 1000, 8), 1);
  EXPECT_EQ(shares(1, 0, 8), 1);
  EXPECT_EQ(backward_num_tiles(c, shared_keys(16, 1024, 32)), 8 * 4 * 16 * 4);
  BackwardArguments full = shared_keys(3, 1000, 32), deterministic = full;
  full.mask = {};
  deterministic.deterministic = true;
  EXPECT_EQ(backward_num_tiles(c, full), 8 * 4 * 3);
  EXPECT_EQ(backward_num_tiles(c, deterministic), 8 * 4 * 3);
  const BackwardConfig general = c.with(Element::kBf16, Variant::kGeneral);
  EXPECT_EQ(backward_num_tiles(general, shared_keys(3, 1000, 32)), 8 * 4 * 3);
}

// Q, dO and the sums of dQ take 2 KB a row and head at 256 columns, half of that at 128.
TEST(BackwardShares, of_heads_that_fill_the_sms_have_64_mb_of_rows) {
  const auto shares = [](int64_t columns, int64_t rows, int64_t heads_per_kv_head) {
    const BackwardConfig c =
        kBackwardTable[size_t(select_backward_kernel(columns, columns))].config;
    return backward_shares(c, shared_keys(1, rows, 4 * heads_per_kv_head));
  };
  EXPECT_EQ(shares(256, 8192, 4), 1);
  EXPECT_EQ(shares(256, 8192, 5), 5);  // not 2, which are not equal
  EXPECT_EQ(shares(256, 8192, 8), 2);
  EXPECT_EQ(shares(256, 16384, 8), 4);
  EXPECT_EQ(shares(256, 65536, 8), 8);  // a head each
  EXPECT_EQ(shares(128, 16384, 4), 1);
  EXPECT_EQ(shares(128, 16384, 8), 2);
  EXPECT_EQ(shares(64, 16384, 8), 1);
  EXPECT_EQ(shares(256, 16384, 1), 1);
}

// As FlashAttention-3 does wherever heads share keys.
TEST(BackwardShares, have_a_float_for_each_padded_element_of_dk_and_dv) {
  const BackwardConfig c = kBackwardTable[size_t(select_backward_kernel(192, 128))].config;
  BackwardArguments full = shared_keys(3, 1000, 32);
  full.mask = {};
  EXPECT_EQ(
      backward_workspace_bytes(c, shared_keys(3, 1000, 32)) - backward_workspace_bytes(c, full),
      3 * 4 * 1024 * (192 + 128) * 4);
}

TEST(BackwardWorkspace, of_sequences_that_a_tile_holds_is_none) {
  const BackwardConfig dense = kBackwardTable[size_t(select_backward_kernel(128, 128))].config;
  const BackwardConfig general = dense.with(Element::kBf16, Variant::kGeneral);
  BackwardArguments a = arguments(1, 1000, 5);
  a.varlen = true;
  a.sequences = 70;
  a.seqlen_q = a.seqlen_k = 64;
  EXPECT_EQ(backward_workspace_bytes(general, a), 0);
  EXPECT_GT(backward_workspace_bytes(dense.with(Element::kBf16, Variant::kCapped), a), 0);
  a.seqlen_k = 65;
  EXPECT_GT(backward_workspace_bytes(general, a), 0);
  a.seqlen_k = 64;
  a.has_sink = true;
  EXPECT_GT(backward_workspace_bytes(general, a), 0);
}

TEST(BackwardWorkspace, of_huge_extents_is_too_many_bytes_and_no_overflow) {
  const BackwardConfig c = kBackwardTable[0].config;
  EXPECT_GE(backward_workspace_bytes(c, arguments(int64_t{1} << 40, int64_t{1} << 30, 1 << 20)),
            kTooManyBytes);
}

}  // namespace
}  // namespace fa3::hopper
