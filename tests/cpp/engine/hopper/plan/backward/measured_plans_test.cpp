// SPDX-License-Identifier: Apache-2.0
// The backward's plans as they were when they were measured, and how they scale with SMs.
#include <gtest/gtest.h>

#include "engine/hopper/plan/backward/backward_calls.h"

namespace fa3::hopper {
namespace {

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
      {{64, 4, 4096, 4096, 32, 32, false, false, false}, {32, 4, 124, 1, false}, 4096, 138412032},
      {{64, 4, 4096, 4096, 32, 32, true, false, false}, {32, 4, 112, 1, false}, 4096, 138412032},
      {{64, 1, 16384, 16384, 32, 32, true, false, false}, {128, 1, 28, 1, false}, 4096, 138412032},
      {{64, 4, 4096, 4096, 32, 32, false, true, false}, {32, 13, 117, 1, false}, 4096, 138428416},
      {{64, 1, 16384, 16384, 32, 32, true, true, false}, {128, 4, 28, 1, true}, 4096, 138428416},
      {{64, 16, 1024, 1024, 32, 32, true, true, false}, {8, 33, 495, 1, true}, 4096, 138428416},
      {{64, 4, 4096, 4096, 32, 32, true, true, true}, {32, 5, 125, 1, true}, 4096, 138428416},
      {{64, 2, 8192, 8192, 32, 8, true, false, false}, {64, 1, 27, 2, false}, 2048, 205520896},
      {{64, 1, 16384, 16384, 32, 4, true, false, false}, {128, 1, 3, 1, false}, 512, 138412032},
      {{96, 3, 1000, 1000, 12, 4, true, false, false}, {8, 10, 0, 3, false}, 288, 33325056},
      {{128, 32, 512, 512, 16, 16, true, false, false}, {4, 16, 464, 1, false}, 2048, 136314880},
      {{128, 16, 1024, 1024, 16, 16, true, false, false}, {8, 8, 216, 1, false}, 2048, 136314880},
      {{128, 16, 1024, 1024, 32, 4, true, false, false}, {8, 4, 220, 4, false}, 2048, 406847488},
      {{128, 32, 1024, 1024, 32, 4, true, false, false}, {8, 1, 127, 1, false}, 1024, 545259520},
      {{128, 8, 4096, 4096, 32, 4, true, false, false}, {32, 1, 55, 2, false}, 2048, 679477248},
      {{128, 1, 16384, 16384, 16, 16, true, false, false}, {128, 1, 14, 1, false}, 2048, 136314880},
      {{128, 1, 12672, 12672, 16, 4, true, false, false}, {99, 1, 13, 4, false}, 1584, 209240064},
      {{128, 1, 12800, 12800, 16, 4, true, false, false}, {100, 1, 3, 1, false}, 400, 106496000},
      {{128, 1, 9984, 9984, 16, 16, true, false, false}, {78, 1, 12, 1, false}, 1248, 83066880},
      {{128, 1, 7552, 7552, 16, 4, true, false, false}, {59, 1, 11, 4, false}, 944, 124698624},
      {{128, 1, 16384, 16384, 32, 4, true, false, false}, {128, 1, 7, 2, false}, 1024, 339738624},
      {{128, 2, 2048, 2048, 16, 16, false, true, false}, {16, 9, 27, 1, false}, 512, 34082816},
      {{128, 2, 2048, 2048, 16, 16, true, true, false}, {16, 9, 27, 1, true}, 512, 34082816},
      {{128, 8, 300, 300, 6, 6, true, true, false}, {3, 44, 44, 1, true}, 144, 7988160},
      {{128, 2, 2048, 2048, 16, 4, true, true, true}, {16, 8, 0, 1, true}, 128, 34082816},
      {{128, 2, 2048, 2048, 16, 4, true, false, true}, {16, 1, 7, 1, false}, 128, 34078720},
      {{128, 1, 300, 5000, 8, 2, true, false, false}, {40, 8, 0, 4, false}, 320, 22302720},
      {{192, 4, 2048, 2048, 24, 6, true, false, false}, {32, 1, 23, 1, false}, 768, 152567808},
      {{256, 1, 8192, 8192, 20, 4, true, false, false}, {64, 1, 19, 5, false}, 2560, 370409472},
      {{256, 1, 8192, 8192, 8, 8, true, false, false}, {64, 1, 6, 1, false}, 1024, 67633152},
      {{256, 16, 1024, 1024, 8, 8, true, false, false}, {8, 4, 108, 1, false}, 2048, 135266304},
      {{256, 4, 4096, 4096, 8, 8, true, false, false}, {32, 1, 27, 1, false}, 2048, 135266304},
      {{256, 4, 2048, 2048, 16, 2, true, false, false}, {16, 2, 54, 8, false}, 2048, 269484032},
      {{256, 8, 512, 512, 8, 8, true, true, false}, {4, 17, 51, 1, true}, 512, 33818624},
      {{256, 64, 512, 512, 32, 4, true, false, false}, {4, 1, 255, 1, false}, 2048, 1082130432},
  };
  for (const Frozen& frozen : kFrozen) {
    expect_frozen(frozen, frozen.plan(kSms));
    EXPECT_EQ(frozen.plan(kSms).tail_tiles, frozen.call.d == 256 ? 264 : 528);
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
      return plan_launches(kernel_for(128), a, expected.sms);
    };
    const BackwardPlan even = plan_launches(kernel_for(64), causal, expected.sms);
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
