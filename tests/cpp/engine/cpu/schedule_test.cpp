// SPDX-License-Identifier: Apache-2.0
//
// The forward's tasks: complete, longest first, evenly dealt out, and planned from each sequence
// alone.
#include "engine/cpu/tiled/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "engine/cpu/tiled/plan_forward.h"
#include "engine/cpu/tiled/tiled.h"
#include "problem.h"

namespace fa3::cpu {
namespace {

using test::shape_only;

TEST(Schedule, parts_cover_the_visible_keys_once) {
  for (int64_t seqlen_k : {1, 511, 512, 513, 4096, 100000, 1000003}) {
    for (int64_t window : {MaskRule::kUnbounded, int64_t{5}, int64_t{3000}}) {
      Problem problem = shape_only(1, 1, seqlen_k, 4, 4, 64);
      problem.mask.left = window;
      const SequencePlan plan = plan_sequence(problem, 0);
      EXPECT_LE(plan.num_parts, kMaxParts);
      int64_t next = plan.visible.begin;
      for (int64_t i = 0; i < plan.num_parts; ++i) {
        EXPECT_EQ(plan.part(i).begin, next);
        EXPECT_FALSE(plan.part(i).empty()) << seqlen_k << " keys, part " << i;
        next = plan.part(i).end;
      }
      EXPECT_EQ(next, plan.visible.end);
    }
  }
}

TEST(Schedule, inner_part_boundaries_are_tile_boundaries) {
  const SequencePlan plan = plan_sequence(shape_only(1, 1, 100000, 1, 1, 64), 0);
  for (int64_t i = 1; i < plan.num_parts; ++i) EXPECT_EQ(plan.part(i).begin % kMaxBlockK, 0);
}

TEST(Schedule, many_rows_are_never_split) {
  EXPECT_EQ(plan_sequence(shape_only(1, kSplitRows + 1, 100000, 1, 1, 64), 0).num_parts, 1);
  EXPECT_GT(plan_sequence(shape_only(1, kSplitRows, 100000, 1, 1, 64), 0).num_parts, 1);
}

TEST(Schedule, every_task_is_found_and_longer_sequences_come_first) {
  const std::vector<int32_t> q_starts = {0, 100, 100, 1000, 1001, 1500};
  const std::vector<int32_t> k_starts = {0, 300, 350, 1350, 9350, 9850};
  Problem problem = shape_only(5, 900, 8000, 6, 3, 64);
  problem.lengths_q = {.cu_seqlens = q_starts.data(), .max = 900, .total = 1500, .varlen = true};
  problem.lengths_k = {.cu_seqlens = k_starts.data(), .max = 8000, .total = 9850, .varlen = true};
  std::vector<SequenceTasks> tasks(5);
  const Totals totals = count_tasks(problem, 96);
  const Schedule schedule(problem, tile_shape(64, 64), 96, tasks.data());
  std::vector<int64_t> found(5);
  int64_t cost = INT64_MAX;
  for (int64_t task = 0; task < totals.num_tasks; ++task) {
    const SequenceTasks entry = schedule.find(task);
    ASSERT_GE(task, entry.first_task);
    ASSERT_LT(task, entry.first_task + entry.num_tasks);
    EXPECT_LE(entry.cost, cost);
    cost = entry.cost;
    ++found[entry.sequence];
  }
  EXPECT_EQ(found[0], 3 * 3);   // 200 rows in blocks of 96, 3 key heads
  EXPECT_EQ(found[1], 0);       // no queries
  EXPECT_EQ(found[2], 3 * 19);  // 1800 rows
  EXPECT_EQ(found[3], 3 * plan_sequence(problem, 3).num_parts);
  EXPECT_EQ(found[4], 3 * 11);
}

// Sequences that are alike need no table; one with lengths that happen to be equal says the same.
TEST(Schedule, of_sequences_that_are_alike_is_that_of_equal_lengths) {
  for (int64_t seqlen_q : {1, 40, 700}) {
    const Problem dense = shape_only(4, seqlen_q, 5000, 6, 3, 64);
    const std::vector<int32_t> used(4, static_cast<int32_t>(seqlen_q));
    Problem varlen = dense;
    varlen.lengths_q.seqused = used.data();
    std::vector<SequenceTasks> table(4);
    const Totals totals = count_tasks(dense, 96);
    ASSERT_EQ(totals.num_tasks, count_tasks(varlen, 96).num_tasks);
    EXPECT_EQ(totals.max_parts, count_tasks(varlen, 96).max_parts);
    const Schedule of_dense(dense, tile_shape(64, 64), 96, nullptr);
    const Schedule of_ragged(varlen, tile_shape(64, 64), 96, table.data());
    for (int64_t task = 0; task < totals.num_tasks; ++task) {
      const SequenceTasks a = of_dense.find(task), b = of_ragged.find(task);
      EXPECT_EQ(a.sequence, b.sequence);
      EXPECT_EQ(a.first_task, b.first_task);
      EXPECT_EQ(a.num_tasks, b.num_tasks);
      EXPECT_EQ(a.first_partial, b.first_partial);
    }
  }
}

// Rows of the thread that ends last over the rows of each thread if all ended together, where
// threads take the next block as soon as they are free, some threads are slower, and a block costs
// its rows.
double lateness(const Problem& problem, const Plan& plan, double slowest) {
  std::vector<double> busy_until(problem.num_threads), speed(problem.num_threads);
  double all_speeds = 0;
  for (int i = 0; i < problem.num_threads; ++i) {
    speed[i] = 1 - (1 - slowest) * i / std::max(problem.num_threads - 1, 1);
    all_speeds += speed[i];
  }
  double rows_left = static_cast<double>(problem.lengths_q.total * problem.heads_q);
  const double all_rows = rows_left;
  for (int64_t task = 0; task < plan.num_tasks; ++task) {
    const auto free = std::min_element(busy_until.begin(), busy_until.end());
    const double rows = std::min<double>(static_cast<double>(plan.block_q), rows_left);
    *free += rows / speed[free - busy_until.begin()];
    rows_left -= rows;
  }
  EXPECT_EQ(rows_left, 0);
  return *std::max_element(busy_until.begin(), busy_until.end()) * all_speeds / all_rows;
}

TEST(Schedule, rows_of_few_heads_are_dealt_out_evenly_to_fast_and_slow_threads) {
  for (auto [rows, heads, kv_heads] : {std::tuple{8192, 1, 1}, {2048, 8, 1}, {2048, 4, 4}}) {
    for (int threads : {4, 16}) {
      Problem problem = shape_only(1, rows, rows, heads, kv_heads, 128);
      problem.num_threads = threads;
      Plan plan;
      ASSERT_TRUE(plan_forward(problem, &plan).ok());
      EXPECT_LT(lateness(problem, plan, 1.0), 1.13) << plan.why;
      EXPECT_LT(lateness(problem, plan, 0.6), 1.2) << plan.why;
    }
  }
}

TEST(Schedule, tiles_are_packed_ahead_for_blocks_too_small_to_pack_for_themselves) {
  const auto packs = [](Problem problem, int threads) {
    problem.num_threads = threads;
    return packs_ahead(problem, forward_tile_shape(problem));
  };
  const Problem one_head = shape_only(1, 8192, 8192, 1, 1, 128);
  EXPECT_TRUE(packs(one_head, 16));
  EXPECT_TRUE(packs(shape_only(1, 1024, 8192, 8, 1, 128), 16));
  EXPECT_FALSE(packs(one_head, 1)) << "one thread packs once for each block of a thousand rows";
  EXPECT_FALSE(packs(shape_only(1, 8192, 8192, 16, 16, 128), 16)) << "blocks are large";
  EXPECT_FALSE(packs(shape_only(1, 500, 8192, 1, 1, 128), 16)) << "a few blocks";
  EXPECT_FALSE(packs(shape_only(1, 1024, 1 << 20, 1, 1, 128), 16)) << "a GiB of packed keys";
  Problem varlen = one_head;
  varlen.lengths_k.varlen = true;
  EXPECT_FALSE(packs(varlen, 16));
}

// A workspace query sees null length arrays; what it answers must do for any lengths.
TEST(Schedule, a_workspace_query_is_never_too_small) {
  for (int64_t total : {10, 100, 1000, 5000}) {
    for (int64_t longest : {int64_t{1}, int64_t{7}, total / 3 + 1, total}) {
      const std::vector<int32_t> starts = {0, static_cast<int32_t>(longest),
                                           static_cast<int32_t>(longest)};
      for (int threads : {1, 2, 64}) {
        BackwardProblem query;
        static_cast<Problem&>(query) = shape_only(2, total, total, 4, 2, 64);
        query.num_threads = threads;
        query.lengths_q = {.max = total, .total = total, .varlen = true};
        query.lengths_k = query.lengths_q;
        BackwardProblem call = query;
        call.lengths_q.cu_seqlens = call.lengths_k.cu_seqlens = starts.data();
        call.lengths_q.max = call.lengths_k.max = longest;
        const auto expect_enough = [&](const char* pass, auto plan_of) {
          Plan query_plan, call_plan;
          ASSERT_TRUE(plan_of(query, &query_plan).ok());
          ASSERT_TRUE(plan_of(call, &call_plan).ok());
          EXPECT_GE(query_plan.workspace_bytes, call_plan.workspace_bytes)
              << pass << ": " << total << " rows, longest " << longest << ", " << threads
              << " threads";
        };
        expect_enough("forward", plan_forward);
        expect_enough("backward", plan_backward);
      }
    }
  }
}

}  // namespace
}  // namespace fa3::cpu
