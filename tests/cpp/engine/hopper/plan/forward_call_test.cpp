// SPDX-License-Identifier: Apache-2.0
// What kernels are told of a problem: the variant that it needs, its mask, the keys that it sees.
#include <gtest/gtest.h>

#include "engine/hopper/plan/forward_call.h"
#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/plan/plan_forward.h"

namespace fa3::hopper {
namespace {

TEST(Variants, what_dense_kernels_do_not_know_asks_for_others) {
  const auto variant_after = [](auto change) {
    Problem p = plain();
    change(p);
    EXPECT_TRUE(check_forward(p).ok()) << check_forward(p).message();
    return variant_of(p);
  };
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.left = 100; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.right = 7; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.left = -7; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.right = -7; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.chunk = 7; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.has_sink = true; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.head_dim = 100; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.head_dim_v = 127; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.o.dtype = DType::float32; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.lengths_k.varlen = true; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.softcap = 30; }), Variant::kCapped);
}

// Kernels count rows in 32 bits.
TEST(NarrowMask, hides_what_the_mask_does_however_far_its_sides_reach) {
  constexpr int64_t kUnbounded = MaskRule::kUnbounded, kFar = int64_t{1} << 40;
  const int64_t reaches[] = {kUnbounded, -kFar, -9, -7, -5, -3, -1, 0, 2, 4, 6, 8, kFar};
  Problem p = plain();
  p.lengths_q.max = 5;
  p.lengths_k.max = 7;
  for (const int64_t left : reaches) {
    for (const int64_t right : reaches) {
      if (left != kUnbounded && right != kUnbounded && left + right < 0) continue;
      p.mask = {.left = left, .right = right};
      const MaskRuleOf<int> narrow = narrow_mask(p);
      for (int q = 0; q < 5; ++q) {
        for (int k = 0; k < 7; ++k) {
          ASSERT_EQ(narrow.visible(q, k, 5, 7), p.mask.visible(q, k, 5, 7)) << left << " " << right;
        }
      }
    }
  }
}

TEST(Sizes, count_the_keys_of_a_window_wherever_it_lies) {
  Problem p = plain();
  p.lengths_q.max = p.lengths_k.max = 10000;
  const auto keys = [&] { return request_of(p, kSms).sizes.keys; };
  p.mask = {.left = 300, .right = -100};
  EXPECT_EQ(keys(), 201);
  p.mask = {.right = -100};
  EXPECT_EQ(keys(), 10000);
}

TEST(Variants, a_window_that_reaches_over_the_longest_sequence_needs_no_general_kernel) {
  Problem p = plain();
  EXPECT_EQ(variant_of(p), Variant::kDense);
  p.mask = {.left = 1000, .right = 0};
  EXPECT_EQ(variant_of(p), Variant::kDense);
  p.mask = {.left = int64_t{1} << 40, .right = int64_t{1} << 40};
  EXPECT_EQ(variant_of(p), Variant::kDense);
  p.mask.left = 999;
  EXPECT_EQ(variant_of(p), Variant::kGeneral);
  p.mask = {.right = 0, .chunk = 1000};
  EXPECT_EQ(variant_of(p), Variant::kDense);
  p.mask.chunk = 999;
  EXPECT_EQ(variant_of(p), Variant::kGeneral);
}

TEST(GateOf, loads_pairs_where_rows_are_aligned_to_them) {
  alignas(16) static constexpr uint16_t kLogits[4] = {};
  const auto kind_after = [](auto change) {
    Problem p = plain();
    p.gate.on = true;
    p.gate.logits = {const_cast<uint16_t*>(kLogits), DType::bfloat16, 512'000, 512, 128};
    change(p);
    return gate_of(p, 128).kind;
  };
  EXPECT_EQ(kind_after([](Problem&) {}), Gate::kPairs);
  EXPECT_EQ(kind_after([](Problem& p) { p.gate.per_row = true; }), Gate::kRows);
  EXPECT_EQ(kind_after([](Problem& p) { p.gate.logits.row_stride = 513; }), Gate::kColumns);
  EXPECT_EQ(kind_after([](Problem& p) { p.head_dim_v = 100; }), Gate::kColumns);
  EXPECT_EQ(kind_after([](Problem& p) { p.gate.logits.data = const_cast<uint16_t*>(kLogits) + 1; }),
            Gate::kColumns);
}

}  // namespace
}  // namespace fa3::hopper
