// SPDX-License-Identifier: Apache-2.0
//
// A last wave of few key blocks: who has one, that it and the others are all key blocks, and that
// its plan is about the same memory.
#include "engine/hopper/catalogue.h"
#include "engine/hopper/plan/backward/backward_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "engine/hopper/plan/backward/backward_calls.h"

namespace fa3::hopper {
namespace {

BackwardKernel pairs_of_128() {
  BackwardKernel kernel = kernel_for(128);
  const auto in_pairs = [](const BackwardRow& row) { return row.kernel.in_pairs(); };
  kernel.config = std::ranges::find_if(kRowsForSomeDenseCalls, in_pairs)->kernel;
  return kernel;
}

// Tensors that begin at different addresses.
BackwardCall placed_call(int64_t batches, int64_t queries, int64_t keys, int64_t heads,
                         int64_t kv_heads, int64_t columns) {
  int64_t begin = int64_t{1} << 40;
  const auto span = [&](int64_t rows, int64_t of_heads) {
    const int64_t row = of_heads * columns + 64;
    begin *= 2;
    return TensorSpan{
        reinterpret_cast<void*>(begin), batches, rows, of_heads, columns, rows * row, row, columns};
  };
  BackwardCall a;
  a.q = span(queries, heads), a.d_o = span(queries, heads), a.dq = span(queries, heads);
  a.k = span(keys, kv_heads), a.v = span(keys, kv_heads);
  a.dk = span(keys, kv_heads), a.dv = span(keys, kv_heads);
  a.seqlen_q = int(queries), a.seqlen_k = int(keys);
  return a;
}
// Key blocks of b x s x h.
TEST(FewKeyBlocks, are_split_where_sms_would_idle) {
  const auto splits = [](int64_t batches, int64_t rows, int64_t heads, bool causal,
                         const BackwardKernel& kernel = kernel_for(128)) {
    BackwardCall a = placed_call(batches, rows, rows, heads, heads, kernel.config.shape.head_dim);
    if (causal) a.mask.right = 0;
    return plan_launches(kernel, a, kSms).step_splits();
  };
  // Full: 64 of 32 steps are half a wave, 128 of 64 a whole one.
  EXPECT_EQ(splits(1, 2048, 4, false), 2);
  EXPECT_EQ(splits(1, 4096, 4, false), 1);
  EXPECT_EQ(splits(1, 2048, 1, false), 8);
  EXPECT_EQ(splits(1, 512, 1, false), 1);  // 8 steps are not worth it
  // Causal: the first of 128 has 64 steps, all of them 32 on average.
  EXPECT_EQ(splits(1, 4096, 4, true), 2);
  EXPECT_EQ(splits(1, 4096, 8, true), 1);
  EXPECT_EQ(splits(1, 2048, 4, true), 3);
  EXPECT_EQ(splits(2, 2048, 16, true), 1);
  // In pairs they would be; split they are not.
  EXPECT_EQ(splits(1, 2048, 4, false, pairs_of_128()), 2);
  BackwardCall few = placed_call(1, 2048, 2048, 4, 4, 128);
  const BackwardPlan plan = plan_launches(pairs_of_128(), few, kSms);
  EXPECT_FALSE(plan.main_config.pairs());
  EXPECT_TRUE(plan.main_config.splits_steps() && plan.kernel.config.splits_steps());
  EXPECT_EQ(plan.grids.main, 64 * 2);
  EXPECT_EQ(plan.num_tiles, 64 * 2);
  EXPECT_EQ(plan.workspace.dkv_accum_bytes, 64 * 128 * 256 * 4);
  few.deterministic = true;
  EXPECT_EQ(plan_launches(pairs_of_128(), few, kSms).step_splits(), 1);
  // At 192 and 128 columns the kernel for all calls splits, that with steps of 48 queries does not.
  BackwardKernel long_sums = kernel_for(192, 128);
  EXPECT_EQ(splits(1, 2048, 2, false, long_sums), 2);
  const auto has_long_sums = [](const BackwardRow& row) { return row.kernel.has_long_sums(); };
  long_sums.config = std::ranges::find_if(kRowsForSomeDenseCalls, has_long_sums)->kernel;
  EXPECT_EQ(splits(1, 2048, 4, false, long_sums), 1);
}

}  // namespace
}  // namespace fa3::hopper
