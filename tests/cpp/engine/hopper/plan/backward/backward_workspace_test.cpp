// SPDX-License-Identifier: Apache-2.0
// What a backward's workspace has room for, and where.
#include <gtest/gtest.h>

#include "engine/hopper/plan/backward/backward_calls.h"
#include "engine/hopper/scheduler/sequence_tiles.h"

namespace fa3::hopper {
namespace {

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
  EXPECT_EQ(w.dk_accum, cuda::kNoArray);
  const BackwardWorkspace split = plan_128(grouped(3, 1000, 32)).workspace;
  EXPECT_EQ(split.dv_accum - split.dk_accum, 4 * 3 * 4 * 1024 * 128 * 4);  // of 8 splits
  EXPECT_EQ(split.bytes, split.dk_accum + split.dkv_accum_bytes);
  EXPECT_EQ(split.dq_semaphore, cuda::kNoArray);
}

// For two of the eight splits each, so that sums repeat.
TEST(BackwardWorkspace, of_head_splits_has_floats_for_each_padded_element_of_dk_and_dv) {
  const BackwardKernel kernel = kernel_for(192, 128);
  BackwardCall full = grouped(3, 1000, 32);
  full.mask = {};
  full.batch_invariant = true;  // not few (few_key_blocks_test.cpp)
  EXPECT_EQ(plan_launches(kernel, grouped(3, 1000, 32), kSms).workspace.bytes -
                plan_launches(kernel, full, kSms).workspace.bytes,
            4 * 3 * 4 * 1024 * (192 + 128) * 4);
}

TEST(BackwardPlan, of_huge_extents_has_too_many_bytes_and_no_overflow) {
  BackwardCall a = call(int64_t{1} << 40, int64_t{1} << 30, 1 << 20);
  EXPECT_GE(plan_launches(kernel_for(64), a, kSms).workspace.bytes, kTooManyBytes);
  a.mask.right = 0;
  a.k.heads = 1 << 10;
  EXPECT_GE(plan_launches(kernel_for(64), a, kSms).workspace.bytes, kTooManyBytes);
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

}  // namespace
}  // namespace fa3::hopper
