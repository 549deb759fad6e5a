// SPDX-License-Identifier: Apache-2.0
//
// A last wave of few key blocks: who has one, that it and the others are all key blocks, and that
// its plan is about the same memory.
#include "engine/hopper/plan/backward/last_wave.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "engine/hopper/plan/backward/backward_calls.h"
#include "engine/hopper/tables/dense_backward_table.h"

namespace fa3::hopper {
namespace {

BackwardKernel pairs_of_128() {
  BackwardKernel kernel = kernel_for(128);
  const auto in_pairs = [](const BackwardInstance& row) { return row.config.in_pairs; };
  kernel.config = std::ranges::find_if(kDenseBackwardTable, in_pairs)->config;
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
// 16k tokens and 2048 columns in all.
BackwardCall usual_call(int64_t rows, int64_t columns) {
  return placed_call(16384 / rows, rows, rows, 2048 / columns, 2048 / columns, columns);
}

int splits_of(const BackwardKernel& kernel, const BackwardCall& a, int sms = kSms) {
  return plan_launches(kernel, a, sms).last_wave.splits;
}

TEST(LastWave, is_split_where_key_blocks_are_long_enough) {
  // 4096 key blocks are 31 waves and 4.
  for (const int rows : {512, 1024}) EXPECT_EQ(splits_of(kernel_for(64), usual_call(rows, 64)), 0);
  EXPECT_EQ(splits_of(kernel_for(64), usual_call(2048, 64)), 16);  // a step each
  EXPECT_EQ(splits_of(kernel_for(64), usual_call(16384, 64)), 32);
  // 2048 key blocks are 15 waves and 68, 1024 pairs as many.
  for (const BackwardKernel& kernel : {kernel_for(128), pairs_of_128()}) {
    EXPECT_EQ(splits_of(kernel, usual_call(2048, 128)), 0);
    EXPECT_EQ(splits_of(kernel, usual_call(4096, 128)), 5);
    EXPECT_EQ(splits_of(kernel, usual_call(16384, 128)), 7);
  }
  EXPECT_EQ(splits_of(kernel_for(256), usual_call(16384, 256)), 7);
  // One wave, of any number, or whole ones.
  EXPECT_EQ(splits_of(kernel_for(128), placed_call(1, 16384, 16384, 1, 1, 128)), 0);
  EXPECT_EQ(splits_of(kernel_for(128), usual_call(16384, 128), 128), 0);
  EXPECT_EQ(splits_of(kernel_for(128), placed_call(1, 16384, 16384, 1, 1, 128), 127), 64);
}

// Key blocks of b x s x h.
TEST(FewKeyBlocks, are_split_where_sms_would_idle) {
  const auto splits = [](int64_t batches, int64_t rows, int64_t heads, bool causal,
                         const BackwardKernel& kernel = kernel_for(128)) {
    BackwardCall a = placed_call(batches, rows, rows, heads, heads, kernel.config.head_dim);
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
  EXPECT_TRUE(plan.main_config.splits_steps && plan.kernel.config.splits_steps);
  EXPECT_EQ(plan.grids.main, 64 * 2);
  EXPECT_EQ(plan.num_tiles, 64 * 2);
  EXPECT_EQ(plan.workspace.dkv_accum_bytes, 64 * 128 * 256 * 4);
  EXPECT_EQ(plan.last_wave.splits, 0);
  few.deterministic = true;
  EXPECT_EQ(plan_launches(pairs_of_128(), few, kSms).step_splits(), 1);
}

TEST(LastWave, is_not_split_where_key_blocks_differ_or_order_counts) {
  const auto with = [](auto set) {
    BackwardCall a = usual_call(16384, 128);
    set(a);
    return splits_of(kernel_for(128), a);
  };
  EXPECT_EQ(with([](auto&) {}), 7);
  EXPECT_EQ(with([](auto& a) { a.mask.right = 0; }), 0);
  EXPECT_EQ(with([](auto& a) { a.deterministic = true; }), 0);
  EXPECT_EQ(with([](auto& a) { a.batch_invariant = true; }), 0);
  EXPECT_EQ(with([](auto& a) { a.has_score_function = true; }), 0);
  const BackwardKernel general = kernel_for(128, 128, Variant::kGeneral);
  EXPECT_EQ(splits_of(general, usual_call(16384, 128)), 0);
}

struct Part {
  BackwardKernel kernel;
  BackwardCall call;
};
std::vector<Part> parts() {
  return {{kernel_for(64), usual_call(2048, 64)},
          {kernel_for(64), usual_call(16384, 64)},
          {kernel_for(128), usual_call(8192, 128)},
          {pairs_of_128(), usual_call(4096, 128)},
          {kernel_for(256), usual_call(8192, 256)},
          {kernel_for(128), placed_call(3, 5000, 3333, 40, 10, 128)},
          {pairs_of_128(), placed_call(3, 5000, 3333, 40, 10, 128)}};
}

// Batch entry, head, first key.
TEST(LastWave, and_the_others_are_all_key_blocks_once) {
  for (const Part& part : parts()) {
    const BackwardPlan plan = plan_launches(part.kernel, part.call, kSms);
    ASSERT_GT(plan.last_wave.splits, 1);
    const BackwardPlan last = plan_of_last_wave(plan);
    const BackwardConfig& whole = plan.main_config;
    std::multiset<std::tuple<int, int, int>> seen;
    const auto see = [&](int batch, int head, int key, const BackwardConfig& c) {
      for (int n = 0; n < c.ctas(); ++n) {
        if (key + n * c.block_n < part.call.seqlen_k)
          seen.insert({batch, head, key + n * c.block_n});
      }
    };
    EXPECT_EQ(plan.grids.main % whole.ctas(), 0);
    for (int tile = 0; tile < plan.grids.main / whole.ctas(); ++tile) {
      const KeyBlockIndex at = plan.order.unsplit_at(tile);
      see(at.batch, at.kv_head, at.n_block * whole.keys_of_cluster(), whole);
    }
    const BackwardConfig& split = last.main_config;
    for (int tile = 0; tile < last.order.num_tiles(); ++tile) {
      const KeyBlockIndex at = last.order.at(tile);
      if (at.step_split > 0) continue;
      see(int(plan.call.k.batches) - 1,
          int(plan.call.k.heads) - int(last.call.k.heads) + at.kv_head,
          int(plan.last_wave.first_key) + at.n_block * split.keys_of_cluster(), split);
    }
    EXPECT_EQ(last.grids.main, int64_t{last.order.num_tiles()} * split.ctas());
    const int64_t of_head = (part.call.k.rows + whole.block_n - 1) / whole.block_n;
    EXPECT_EQ(seen.size(), size_t(of_head * part.call.k.heads * part.call.k.batches));
    EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), seen.size());
    // Whole waves are left, but for fewer tiles than it has heads.
    const int64_t at_once = kSms / whole.ctas(), clusters = plan.num_tiles / whole.ctas();
    const int64_t missing = plan.grids.main / whole.ctas() - clusters / at_once * at_once;
    EXPECT_LE(missing, 0);
    EXPECT_GT(missing, -last.call.k.heads);
  }
}

const void* element(const TensorSpan& t, int64_t batch, int64_t row, int64_t head) {
  return static_cast<const std::byte*>(t.data) +
         (batch * t.batch_stride + row * t.row_stride + head * t.head_stride) * t.element_bytes;
}

TEST(LastWave, has_the_memory_of_its_heads_and_keys) {
  for (const Part& part : parts()) {
    const BackwardPlan plan = plan_launches(part.kernel, part.call, kSms);
    const BackwardPlan last = plan_of_last_wave(plan);
    const BackwardCall &a = plan.call, &b = last.call;
    const int64_t batch = a.k.batches - 1, head = a.k.heads - b.k.heads,
                  group = a.q.heads / a.k.heads;
    const int64_t key = plan.last_wave.first_key;
    EXPECT_EQ(b.q.heads, b.k.heads * group);
    EXPECT_EQ(b.seqlen_k, a.seqlen_k - key);
    EXPECT_EQ(b.k.rows, b.seqlen_k);
    for (const auto& [t, u] : {std::pair{a.k, b.k}, {a.v, b.v}, {a.dk, b.dk}, {a.dv, b.dv}}) {
      EXPECT_EQ(element(u, 0, 0, 0), element(t, batch, key, head));
      EXPECT_EQ(element(u, 0, 1, 1), element(t, batch, key + 1, head + 1));
    }
    for (const auto& [t, u] : {std::pair{a.q, b.q}, {a.d_o, b.d_o}}) {
      EXPECT_EQ(element(u, 0, 5, 1), element(t, batch, 5, head * group + 1));
    }
    // Arrays of queries, by block.
    const int64_t block = (batch * a.q.heads + head * group) * plan.q_blocks.of_entry;
    const BackwardConfig& c = last.main_config;
    const BackwardWorkspace &w = plan.workspace, &v = last.workspace;
    EXPECT_EQ(v.dq_accum - w.dq_accum, block * c.block_m * c.head_dim * 4);
    EXPECT_EQ(v.lse_log2 - w.lse_log2, block * c.block_m * 4);
    EXPECT_EQ(v.delta - w.delta, block * c.block_m * 4);
    // Sums of dK and dV, of its key blocks alone.
    const int64_t rows = b.k.heads * last.k_blocks.of_entry * c.keys_of_cluster();
    EXPECT_GE(rows, b.k.heads * b.k.rows);
    EXPECT_EQ(v.dk_accum, w.dk_accum);
    EXPECT_EQ(w.dv_accum - w.dk_accum, rows * c.head_dim * 4);
    EXPECT_EQ(w.dkv_accum_bytes, rows * (c.head_dim + c.head_dim_v) * 4);
    EXPECT_LE(w.dk_accum + w.dkv_accum_bytes, w.bytes);
    EXPECT_EQ(last.grids.postprocess_dk, rows / c.keys_of_cluster() * c.dk_accum().parts());
  }
}

}  // namespace
}  // namespace fa3::hopper
