// SPDX-License-Identifier: Apache-2.0
// The backward's plans: budgets of the kernel table, which row a shape gets, what follows for the
// launches.
#include "engine/hopper/plan/backward/plan_backward.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "engine/hopper/config/forward_config.h"
#include "engine/hopper/plan/backward/backward_plan.h"
#include "engine/hopper/plan/select/select_kernel.h"
#include "engine/hopper/scheduler/sequence_tiles.h"
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

TEST(SelectBackwardKernel, has_float32_gradients_to_128_columns) {
  for (const Variant variant : {Variant::kDense, Variant::kGeneral}) {
    for (const int64_t d : {8, 64, 72, 128, 136}) {
      const int row = select_wide_backward_kernel(d, d, variant);
      ASSERT_EQ(row != kNoBackwardKernel, d <= 128) << d;
      if (row == kNoBackwardKernel) continue;
      const BackwardConfig& c = kWideBackwardTable[size_t(row)].config;
      EXPECT_TRUE(c.wide && c.variant == variant && c.head_dim == (d <= 64 ? 64 : 128)) << d;
      EXPECT_FALSE(c.with(Element::kBf16, variant).can_take_short_sequences());
    }
  }
}

// Where a row for the same head dims has none, and no CTA is without keys of its own.
TEST(SelectBackwardKernel, has_pairs_of_128_columns_for_key_blocks_in_even_numbers) {
  const auto takes = [](int64_t d, int64_t dv, int64_t keys) {
    const int row = select_dense_backward_kernel(d, dv, {.queries = 8192, .keys = keys});
    return row != kNoBackwardKernel && kDenseBackwardTable[size_t(row)].config.pairs();
  };
  for (const int64_t d : {64, 96, 104, 128, 136, 192, 256, 264}) {
    EXPECT_EQ(takes(d, d, 1024), d == 104 || d == 128) << d;
  }
  EXPECT_TRUE(takes(64, 128, 1024) && takes(128, 8, 1024));
  for (const int64_t keys : {129, 200, 256, 1000, 2048}) EXPECT_TRUE(takes(128, 128, keys)) << keys;
  for (const int64_t keys : {1, 128, 257, 384, 1100}) EXPECT_FALSE(takes(128, 128, keys)) << keys;
}

// They have eight steps and less, on average, and add in any order.
TEST(SelectBackwardKernel, has_persistent_CTAs_at_64_columns_for_key_blocks_of_few_steps) {
  const auto takes = [](int64_t d, const DenseCall& call) {
    const int row = select_dense_backward_kernel(d, d, call);
    return row != kNoBackwardKernel && kDenseBackwardTable[size_t(row)].config.persistent;
  };
  // Eight key blocks, 256 times.
  const auto of = [](int64_t queries, int64_t group = 1, bool causal = false) {
    return DenseCall{
        .queries = queries, .keys = 1024, .group = group, .key_heads = 256, .is_causal = causal};
  };
  for (const int64_t d : {8, 32, 64, 72, 96, 128}) EXPECT_EQ(takes(d, of(512)), d <= 64) << d;
  EXPECT_TRUE(takes(64, of(1)) && takes(64, of(1024)) && takes(64, of(256, 4)));
  EXPECT_FALSE(takes(64, of(0)) || takes(64, of(1025)) || takes(64, of(257, 4)));
  EXPECT_TRUE(takes(64, of(2048, 1, true)) && !takes(64, of(2049, 1, true)));
  DenseCall call = of(512);
  call.deterministic = true;
  EXPECT_FALSE(takes(64, call));
  call = of(512);
  call.key_heads = 255;
  EXPECT_FALSE(takes(64, call));
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

// Every call that has a forward has gradients.
TEST(SelectBackwardKernel, gives_the_narrowest_that_fits_wherever_the_forward_has_a_kernel) {
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

constexpr int kH200Sms = 132;

// A kernel instance without functions.
BackwardKernel kernel_for(int64_t head_dim, int64_t head_dim_v, Variant v = Variant::kDense) {
  const auto row = size_t(select_backward_kernel(head_dim, head_dim_v));
  BackwardKernel kernel{.config = kBackwardTable[row].config.with(Element::kBf16, v)};
  if (kernel.config.can_split_steps()) kernel.splits.config = kernel.config.with_step_splits();
  return kernel;
}

BackwardPlan plan_128(const BackwardCall& a, Variant v = Variant::kDense) {
  return plan_launches(kernel_for(128, 128, v), a, kH200Sms);
}

BackwardCall call(int64_t batches, int64_t rows, int64_t heads) {
  BackwardCall a;
  a.q = {.batches = batches, .rows = rows, .heads = heads, .columns = 128};
  a.k = a.q;
  return a;
}

// Four kv heads, causal.
BackwardCall grouped(int64_t batches, int64_t rows, int64_t heads) {
  BackwardCall a = call(batches, rows, heads);
  a.k.heads = 4;
  a.mask.right = 0;
  return a;
}

TEST(BackwardWorkspace, has_a_float_for_each_padded_element_of_dq_and_two_numbers_a_row) {
  const int64_t rows = 3 * 5 * 128;  // 100 rows are padded to 2 blocks
  EXPECT_EQ(plan_128(call(3, 100, 5)).workspace.bytes, rows * 128 * 4 + 2 * rows * 4);
}

// The most that there can be, whatever the device's arrays hold.
TEST(BackwardWorkspace, of_packed_sequences_has_a_block_more_for_each) {
  BackwardCall a = call(1, 1000, 5);
  a.varlen = true;
  a.sequences = 7;
  a.lengths_q.in_one_tensor = true;
  const BackwardPlan plan = plan_128(a);
  EXPECT_EQ(plan.grids.preprocess, (16 + 7 + 1) * 5);
  EXPECT_EQ(plan.grids.main, (8 + 7 + 1) * 5);
  const int64_t rows = (16 + 7 + 1) * 5 * 64;
  const int64_t lists = (16 + 7 + 1 + 8 + 7 + 1) * int64_t{sizeof(SequenceTiles)} + 2 * 64;
  EXPECT_EQ(plan.workspace.bytes, rows * 128 * 4 + 2 * rows * 4 + lists);
  a.has_sink = true;
  EXPECT_EQ(plan_128(a).workspace.bytes, rows * 128 * 4 + 2 * rows * 4 + lists + 512);
}

// Every array of a workspace begins where the one before ends.
TEST(BackwardWorkspace, arrays_do_not_overlap) {
  BackwardCall a = call(2, 1000, 4);
  a.deterministic = a.has_sink = a.varlen = true;
  a.sequences = 2;
  const BackwardWorkspace w = plan_128(a, Variant::kGeneral).workspace;
  const int64_t q_blocks = 2 * 4 * 16;
  EXPECT_EQ(w.dq_accum, 0);
  EXPECT_EQ(w.lse_log2, q_blocks * 64 * 128 * 4);
  EXPECT_EQ(w.delta, w.lse_log2 + q_blocks * 64 * 4);
  EXPECT_EQ(w.dq_semaphore, w.delta + q_blocks * 64 * 4);
  EXPECT_EQ(w.sink_sums, w.dq_semaphore + q_blocks * 4);
  EXPECT_EQ(w.q_tiles, w.sink_sums + q_blocks * 4);
  EXPECT_GE(w.num_q_tiles, w.q_tiles + (32 + 2 + 1) * int64_t{sizeof(SequenceTiles)});
  EXPECT_EQ(w.k_tiles, w.num_q_tiles + 64);
  EXPECT_GE(w.num_k_tiles, w.k_tiles + (16 + 2 + 1) * int64_t{sizeof(SequenceTiles)});
  EXPECT_EQ(w.bytes, w.num_k_tiles + 64);
  EXPECT_EQ(w.dk_accum, w.kNone);
  const BackwardWorkspace split = plan_128(grouped(3, 1000, 32)).workspace;
  EXPECT_EQ(split.dv_accum - split.dk_accum, 3 * 4 * 1024 * 128 * 4);
  EXPECT_EQ(split.bytes, split.dk_accum + split.dkv_accum_bytes);
  EXPECT_EQ(split.dq_semaphore, split.kNone);
}

TEST(BackwardPlan, splits_the_query_heads_of_causal_key_blocks) {
  const auto splits = [&](int64_t batches, int64_t rows, int64_t heads_per_kv_head) {
    return plan_128(grouped(batches, rows, 4 * heads_per_kv_head)).step_splits();
  };
  EXPECT_EQ(splits(16, 1024, 8), 4);  // for 2048 CTAs
  EXPECT_EQ(splits(4, 4096, 8), 4);
  EXPECT_EQ(splits(8, 4096, 8), 2);
  EXPECT_EQ(splits(16, 4096, 8), 1);
  EXPECT_EQ(splits(32, 1024, 8), 1);   // the sums would cost more
  EXPECT_EQ(splits(16, 1024, 6), 6);   // not 4, which are not equal
  EXPECT_EQ(splits(1, 1000, 8), 8);    // a head each
  EXPECT_EQ(splits(1, 1000, 257), 1);  // more than order.step_splits can hold
  EXPECT_EQ(splits(1, 1000, 1), 1);
  EXPECT_EQ(splits(0, 1000, 8), 1);
  EXPECT_EQ(splits(1, 0, 8), 1);
  EXPECT_EQ(plan_128(grouped(16, 1024, 32)).grids.main, 8 * 4 * 16 * 4);
  BackwardCall full = grouped(3, 1000, 32), deterministic = full;
  full.mask = {};
  full.batch_invariant = true;  // not by steps either (last_wave_test.cpp)
  deterministic.deterministic = true;
  EXPECT_EQ(plan_128(full).grids.main, 8 * 4 * 3);
  EXPECT_EQ(plan_128(deterministic).grids.main, 8 * 4 * 3);
  EXPECT_EQ(plan_128(grouped(3, 1000, 32), Variant::kGeneral).grids.main, 8 * 4 * 3);
}

// Q, dO and the sums of dQ take 2 KB a row and head at 256 columns, half of that at 128.
TEST(BackwardPlan, splits_steps_that_fill_the_sms_into_64_mb_of_rows) {
  const auto splits = [](int64_t columns, int64_t rows, int64_t heads_per_kv_head) {
    return plan_launches(kernel_for(columns, columns), grouped(1, rows, 4 * heads_per_kv_head),
                         kH200Sms)
        .step_splits();
  };
  EXPECT_EQ(splits(256, 8192, 4), 1);
  EXPECT_EQ(splits(256, 8192, 5), 5);  // not 2, which are not equal
  EXPECT_EQ(splits(256, 8192, 8), 2);
  EXPECT_EQ(splits(256, 16384, 8), 4);
  EXPECT_EQ(splits(256, 65536, 8), 8);  // a head each
  EXPECT_EQ(splits(128, 16384, 4), 1);
  EXPECT_EQ(splits(128, 16384, 8), 2);
  EXPECT_EQ(splits(64, 16384, 8), 1);
  EXPECT_EQ(splits(256, 16384, 1), 1);
}

// Two CTAs for 128 keys, or for fewer at the end: of each head and batch entry, and of each split.
TEST(BackwardPlan, of_256_columns_has_pairs_of_CTAs) {
  const auto tiles = [](int64_t keys, int64_t kv_heads, Variant v) {
    BackwardCall a = grouped(3, 1000, 8);
    a.k.rows = keys;
    a.k.heads = kv_heads;
    a.mask = {};
    a.batch_invariant = true;  // whole
    const BackwardPlan plan = plan_launches(kernel_for(256, 256, v), a, kH200Sms);
    EXPECT_EQ(plan.grids.main, plan.num_tiles);
    EXPECT_EQ(plan.num_tiles, plan.order.num_tiles() * plan.main_config.ctas());
    return plan.num_tiles;
  };
  for (const Variant v : {Variant::kDense, Variant::kGeneral}) {
    EXPECT_EQ(tiles(1, 2, v), 2 * 2 * 3);
    EXPECT_EQ(tiles(128, 2, v), 2 * 2 * 3);
    EXPECT_EQ(tiles(129, 2, v), 4 * 2 * 3);
    EXPECT_EQ(tiles(300, 1, v), 6 * 1 * 3);
  }
  const BackwardPlan split = plan_launches(kernel_for(256, 256), grouped(3, 300, 32), kH200Sms);
  EXPECT_EQ(split.step_splits(), 8);
  EXPECT_EQ(split.num_tiles, 6 * 4 * 3 * 8);
}

// As FlashAttention-3 does wherever heads share keys.
TEST(BackwardWorkspace, of_head_splits_has_a_float_for_each_padded_element_of_dk_and_dv) {
  const BackwardKernel kernel = kernel_for(192, 128);
  BackwardCall full = grouped(3, 1000, 32);
  full.mask = {};
  full.batch_invariant = true;  // no last wave (last_wave_test.cpp)
  EXPECT_EQ(plan_launches(kernel, grouped(3, 1000, 32), kH200Sms).workspace.bytes -
                plan_launches(kernel, full, kH200Sms).workspace.bytes,
            3 * 4 * 1024 * (192 + 128) * 4);
}

TEST(BackwardPlan, of_sequences_that_a_tile_holds_has_one_launch_and_no_workspace) {
  BackwardCall a = call(1, 1000, 5);
  a.varlen = true;
  a.sequences = 70;
  a.seqlen_q = a.seqlen_k = 64;
  const BackwardPlan plan = plan_128(a, Variant::kGeneral);
  EXPECT_TRUE(plan.short_sequences);
  EXPECT_EQ(plan.grids.short_sequences, 71 * 5);
  EXPECT_EQ(plan.grids.main, 0);
  EXPECT_EQ(plan.workspace.bytes, 0);
  EXPECT_FALSE(plan_128(a, Variant::kCapped).short_sequences);
  EXPECT_GT(plan_128(a, Variant::kCapped).workspace.bytes, 0);
  const auto is_short = [](BackwardCall c) {
    return plan_128(c, Variant::kGeneral).short_sequences;
  };
  BackwardCall longer = a, sink = a, invariant = a;
  longer.seqlen_k = 65;
  sink.has_sink = true;
  invariant.batch_invariant = true;
  EXPECT_FALSE(is_short(longer));
  EXPECT_FALSE(is_short(sink));
  EXPECT_FALSE(is_short(invariant));
}

TEST(BackwardPlan, packs_as_many_heads_as_the_tile_of_a_short_sequence_has_room_for) {
  const auto packed_heads = [](int64_t seqlen_q, int64_t heads, int64_t kv_heads, int batches = 1) {
    BackwardCall a = call(batches, 1000, heads);
    a.k.heads = a.v.heads = a.dk.heads = a.dv.heads = kv_heads;
    a.varlen = true;
    a.sequences = 70;
    a.seqlen_q = int(seqlen_q);
    a.seqlen_k = 64;
    return plan_128(a, Variant::kGeneral).short_pack.heads();
  };
  EXPECT_EQ(packed_heads(32, 32, 4), 2);
  EXPECT_EQ(packed_heads(33, 32, 4), 1);
  EXPECT_EQ(packed_heads(1, 32, 4), 8);
  EXPECT_EQ(packed_heads(16, 12, 2), 2);  // of six
  EXPECT_EQ(packed_heads(16, 5, 1), 1);
  EXPECT_EQ(packed_heads(16, 32, 4, 2), 1);
  EXPECT_EQ(packed_heads(65, 32, 4), 1);
}

TEST(BackwardPlan, of_huge_extents_has_too_many_bytes_and_no_overflow) {
  BackwardCall a = call(int64_t{1} << 40, int64_t{1} << 30, 1 << 20);
  EXPECT_GE(plan_launches(kernel_for(64, 64), a, kH200Sms).workspace.bytes, kTooManyBytes);
  a.mask.right = 0;
  a.k.heads = 1 << 10;
  EXPECT_GE(plan_launches(kernel_for(64, 64), a, kH200Sms).workspace.bytes, kTooManyBytes);
}

TEST(BackwardPlan, without_rows_queues_nothing_unless_a_sink_wants_its_gradient) {
  BackwardCall a = call(2, 0, 4);
  const BackwardPlan plan = plan_128(a);
  EXPECT_EQ(plan.workspace.bytes, 0);
  EXPECT_TRUE(plan.call.has_nothing_to_do());
  a.has_d_sink = true;
  EXPECT_FALSE(plan_128(a).call.has_nothing_to_do());
  EXPECT_EQ(plan_128(a).grids.main, 0);
}

// The main kernel of a call is that of its order of additions and of its splits.
TEST(BackwardPlan, takes_the_main_kernel_that_the_call_needs) {
  const char functions[3] = {};
  BackwardKernel kernel = kernel_for(64, 64);  // no helpers, unless they keep the order
  kernel.main = functions;
  kernel.main_deterministic = functions + 1;
  kernel.splits.main = functions + 2;
  const auto main_of = [&](const BackwardCall& a) {
    const BackwardPlan plan = plan_launches(kernel, a, kH200Sms);
    return std::pair(static_cast<const char*>(plan.main) - functions, plan.main_config.threads());
  };
  BackwardCall deterministic = grouped(1, 1000, 8);
  deterministic.deterministic = true;
  EXPECT_EQ(main_of(call(1, 1000, 8)), std::pair(ptrdiff_t{0}, 3 * 128));
  EXPECT_EQ(main_of(deterministic), std::pair(ptrdiff_t{1}, 4 * 128));
  EXPECT_EQ(main_of(grouped(1, 1000, 8)), std::pair(ptrdiff_t{2}, 3 * 128));
}

struct Frozen {
  struct {
    int d, batches, seqlen_q, seqlen_k, heads, kv_heads;
    bool causal, deterministic, general;
  } call;
  struct {
    int num_n_blocks, section_heads, last_section, step_splits;
    bool last_keys_first;
  } order;
  int64_t tiles;
  int64_t workspace_bytes;

  BackwardPlan plan(int num_sms) const {
    BackwardCall a;
    a.q = {.batches = call.batches, .rows = call.seqlen_q, .heads = call.heads, .columns = call.d};
    a.k = a.q;
    a.k.rows = call.seqlen_k;
    a.k.heads = call.kv_heads;
    if (call.causal) a.mask.right = 0;
    a.deterministic = call.deterministic;
    return plan_launches(
        kernel_for(call.d, call.d, call.general ? Variant::kGeneral : Variant::kDense), a, num_sms);
  }
};

void expect_frozen(const Frozen& frozen, const BackwardPlan& plan) {
  SCOPED_TRACE(testing::Message() << "d" << frozen.call.d << ", " << frozen.call.batches << " x "
                                  << frozen.call.seqlen_q);
  EXPECT_EQ(plan.order.num_n_blocks, frozen.order.num_n_blocks);
  EXPECT_EQ(plan.order.section_heads, frozen.order.section_heads);
  EXPECT_EQ(plan.order.last_section, frozen.order.last_section);
  EXPECT_EQ(plan.order.step_splits, frozen.order.step_splits);
  EXPECT_EQ(plan.order.last_keys_first, frozen.order.last_keys_first);
  EXPECT_EQ(plan.num_tiles, frozen.tiles);
  EXPECT_EQ(plan.workspace.bytes, frozen.workspace_bytes);
}

// Measured on an H200 or an H100. A change here is to be measured too.
TEST(BackwardPlan, on_132_sms_is_what_was_measured) {
  constexpr Frozen kFrozen[] = {
      {{64, 1, 512, 512, 32, 32, true, false, false}, {4, 32, 0, 1, false}, 128, 4325376},
      {{64, 16, 1024, 1024, 32, 32, true, false, false}, {8, 16, 464, 1, false}, 4096, 138412032},
      {{64, 4, 4096, 4096, 32, 32, false, false, false}, {32, 4, 124, 1, false}, 4096, 138674176},
      {{64, 4, 4096, 4096, 32, 32, true, false, false}, {32, 4, 112, 1, false}, 4096, 138412032},
      {{64, 1, 16384, 16384, 32, 32, true, false, false}, {128, 1, 28, 1, false}, 4096, 138412032},
      {{64, 4, 4096, 4096, 32, 32, false, true, false}, {32, 13, 117, 1, false}, 4096, 138428416},
      {{64, 1, 16384, 16384, 32, 32, true, true, false}, {128, 4, 28, 1, true}, 4096, 138428416},
      {{64, 16, 1024, 1024, 32, 32, true, true, false}, {8, 33, 495, 1, true}, 4096, 138428416},
      {{64, 4, 4096, 4096, 32, 32, true, true, true}, {32, 5, 125, 1, true}, 4096, 138428416},
      {{64, 2, 8192, 8192, 32, 8, true, false, false}, {64, 1, 27, 2, false}, 2048, 205520896},
      {{64, 1, 16384, 16384, 32, 4, true, false, false}, {128, 1, 3, 1, false}, 512, 138412032},
      {{96, 3, 1000, 1000, 12, 4, true, false, false}, {8, 10, 0, 3, false}, 288, 23887872},
      {{128, 32, 512, 512, 16, 16, true, false, false}, {4, 16, 464, 1, false}, 2048, 136314880},
      {{128, 16, 1024, 1024, 16, 16, true, false, false}, {8, 8, 216, 1, false}, 2048, 136314880},
      {{128, 16, 1024, 1024, 32, 4, true, false, false}, {8, 4, 220, 4, false}, 2048, 339738624},
      {{128, 32, 1024, 1024, 32, 4, true, false, false}, {8, 1, 127, 1, false}, 1024, 545259520},
      {{128, 8, 4096, 4096, 32, 4, true, false, false}, {32, 1, 55, 2, false}, 2048, 679477248},
      {{128, 1, 16384, 16384, 16, 16, true, false, false}, {128, 1, 14, 1, false}, 2048, 136314880},
      {{128, 1, 12672, 12672, 16, 4, true, false, false}, {99, 1, 13, 4, false}, 1584, 157335552},
      {{128, 1, 12800, 12800, 16, 4, true, false, false}, {100, 1, 3, 1, false}, 400, 106496000},
      {{128, 1, 9984, 9984, 16, 16, true, false, false}, {78, 1, 12, 1, false}, 1248, 83066880},
      {{128, 1, 7552, 7552, 16, 4, true, false, false}, {59, 1, 11, 4, false}, 944, 93765632},
      {{128, 1, 16384, 16384, 32, 4, true, false, false}, {128, 1, 7, 2, false}, 1024, 339738624},
      {{128, 2, 2048, 2048, 16, 16, false, true, false}, {16, 9, 27, 1, false}, 512, 34082816},
      {{128, 2, 2048, 2048, 16, 16, true, true, false}, {16, 9, 27, 1, true}, 512, 34082816},
      {{128, 8, 300, 300, 6, 6, true, true, false}, {3, 44, 44, 1, true}, 144, 7988160},
      {{128, 2, 2048, 2048, 16, 4, true, true, true}, {16, 8, 0, 1, true}, 128, 34082816},
      {{128, 2, 2048, 2048, 16, 4, true, false, true}, {16, 1, 7, 1, false}, 128, 34078720},
      {{128, 1, 300, 5000, 8, 2, true, false, false}, {40, 8, 0, 4, false}, 320, 11816960},
      {{192, 4, 2048, 2048, 24, 6, true, false, false}, {32, 1, 23, 1, false}, 768, 152567808},
      {{256, 1, 8192, 8192, 20, 4, true, false, false}, {64, 1, 19, 5, false}, 2560, 236191744},
      {{256, 1, 8192, 8192, 8, 8, true, false, false}, {64, 1, 6, 1, false}, 1024, 67633152},
      {{256, 16, 1024, 1024, 8, 8, true, false, false}, {8, 4, 108, 1, false}, 2048, 135266304},
      {{256, 4, 4096, 4096, 8, 8, true, false, false}, {32, 1, 27, 1, false}, 2048, 135266304},
      {{256, 4, 2048, 2048, 16, 2, true, false, false}, {16, 2, 54, 8, false}, 2048, 168820736},
      {{256, 8, 512, 512, 8, 8, true, true, false}, {4, 17, 51, 1, true}, 512, 33818624},
      {{256, 64, 512, 512, 32, 4, true, false, false}, {4, 1, 255, 1, false}, 2048, 1082130432},
  };
  for (const Frozen& frozen : kFrozen) {
    expect_frozen(frozen, frozen.plan(kH200Sms));
    EXPECT_EQ(frozen.plan(kH200Sms).tail_tiles, frozen.call.d == 256 ? 264 : 528);
  }
}

TEST(BackwardPlan, scales_with_the_number_of_sms) {
  struct {
    int sms;
    int tail_tiles;
    int splits;           // until each SM has 16 tiles
    int splits_if_few;    // with 448 key blocks and few rows
    int splits_if_fills;  // 59 key blocks are most SMs only if there are 78
    int apart;            // heads of a section in deterministic calls: a tile for each SM
    int last_tiles;       // the first of the last heads, which have 3 tiles for each SM
    int last_heads;       // ... or are a quarter of the SMs; sections have 8
  } constexpr kCases[] = {{132, 528, 4, 4, 4, 9, 10, 24},
                          {114, 456, 4, 4, 4, 8, 11, 32},
                          {78, 312, 2, 1, 1, 5, 12, 40}};
  BackwardCall deterministic = call(2, 2048, 16), causal = call(1, 9000, 16);
  deterministic.deterministic = true;
  causal.mask.right = 0;
  BackwardCall few_keys = causal;
  few_keys.q.rows = 1024;
  few_keys.k.rows = 256;
  few_keys.q.heads = few_keys.k.heads = 64;
  for (const auto& expected : kCases) {
    SCOPED_TRACE(expected.sms);
    const auto plan = [&](const BackwardCall& a) {
      return plan_launches(kernel_for(128, 128), a, expected.sms);
    };
    const BackwardPlan even = plan_launches(kernel_for(64, 64), causal, expected.sms);
    EXPECT_EQ(plan(causal).tail_tiles, expected.tail_tiles);
    EXPECT_EQ(plan(grouped(4, 4096, 32)).step_splits(), expected.splits);
    EXPECT_EQ(plan(grouped(14, 1024, 32)).step_splits(), expected.splits_if_few);
    EXPECT_EQ(plan(grouped(1, 7552, 16)).step_splits(), expected.splits_if_fills);
    EXPECT_EQ(plan(deterministic).order.section_heads, expected.apart);
    EXPECT_EQ(even.order.last_section, expected.last_tiles);
    EXPECT_EQ(plan(few_keys).order.last_section, expected.last_heads);
  }
}
}  // namespace
}  // namespace fa3::hopper
