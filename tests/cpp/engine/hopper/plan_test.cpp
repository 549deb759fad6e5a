// SPDX-License-Identifier: Apache-2.0
// The kernel table's budgets, which row a shape gets, and the reasons for saying no.
#include <gtest/gtest.h>

#include "engine/hopper/compiled.h"
#include "engine/hopper/plan_forward.h"

namespace fa3::hopper {
namespace {

TEST(ForwardTable, every_row_keeps_its_budgets) {
  constexpr int kRegistersPerLaunchThreadQuad = 512;  // 64 K registers over 128 threads
  constexpr int kBarrierBytes = 1024;                 // barriers and records, generously
  for (const CompiledForward& row : kForwardTable) {
    const ForwardConfig& c = row.config;
    EXPECT_LE(c.producer_registers() + c.consumers() * c.consumer_registers(),
              kRegistersPerLaunchThreadQuad);
    EXPECT_LE(c.consumer_registers_used(), c.consumer_registers());
    EXPECT_LE(c.q_slots * c.q_bytes() + c.kv_slots * c.slot_bytes() + kBarrierBytes, kMaxSmemBytes);
    EXPECT_EQ(c.q_bytes() % kSmemAlignment, 0);
    EXPECT_EQ(c.slot_bytes() % kSmemAlignment, 0);
    // K of the next block beside V of this one, and one slot to load into.
    EXPECT_GE(c.kv_slots, 3);
  }
}

TEST(ForwardTable, every_head_dim_up_to_256_has_the_narrowest_kernel_that_fits) {
  for (int d = 8; d <= 256; d += 8) {
    const int row = choose_row({d, d, 4096, 4096});
    ASSERT_NE(row, kNoRow) << d;
    const int native = d <= 64 ? 64 : d <= 96 ? 96 : d <= 128 ? 128 : d <= 192 ? 192 : 256;
    EXPECT_EQ(kForwardTable[row].config.head_dim, native);
    EXPECT_EQ(kForwardTable[row].config.head_dim_v, native);
  }
  EXPECT_EQ(kForwardTable[choose_row({192, 128, 4096, 4096})].config.head_dim_v, 128);
  EXPECT_EQ(choose_row({264, 64, 4096, 4096}), kNoRow);
  EXPECT_EQ(choose_row({64, 264, 4096, 4096}), kNoRow);
}

TEST(ForwardTable, short_keys_get_their_own_rows) {
  const auto tile = [](int64_t keys) {
    const ForwardConfig& c = kForwardTable[choose_row({128, 128, keys, keys})].config;
    return std::pair(c.block_m, c.block_n);
  };
  EXPECT_EQ(tile(16384), std::pair(192, 80));
  EXPECT_EQ(tile(1024), std::pair(128, 128));
}

Problem plain() {
  Problem p;
  p.batch = 2;
  p.heads_q = p.heads_k = 4;
  p.head_dim = p.head_dim_v = 128;
  p.dtype = p.o.dtype = DType::bfloat16;
  p.lengths_q.max = p.lengths_k.max = 1000;
  p.device = FA3_CUDA;
  return p;
}

TEST(CheckFeatures, what_the_kernels_do_is_accepted) {
  Problem p = plain();
  EXPECT_TRUE(check_features(p).ok());
  p.mask.right = 0;  // causal
  EXPECT_TRUE(check_features(p).ok());
  p.dtype = p.o.dtype = DType::float16;
  p.heads_k = 1;
  p.head_dim = 72;
  p.head_dim_v = 40;
  p.lengths_q.max = 1;
  p.lengths_k.max = 0;
  EXPECT_TRUE(check_features(p).ok());
}

TEST(CheckFeatures, what_they_do_not_is_refused_with_its_reason) {
  const int32_t lengths[3] = {0, 500, 1000};
  const auto expect_refused = [](const char* reason, auto change) {
    Problem p = plain();
    change(p);
    const Status status = check_features(p);
    EXPECT_EQ(status.code(), StatusCode::unsupported) << reason;
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
  };
  expect_refused("float32", [](Problem& p) { p.dtype = DType::float32; });
  expect_refused("packed", [&](Problem& p) { p.lengths_q.cu_seqlens = lengths; });
  expect_refused("unequal lengths", [](Problem& p) { p.lengths_k.ragged = true; });
  expect_refused("windows", [](Problem& p) { p.mask.left = 100; });
  expect_refused("windows", [](Problem& p) { p.mask.right = 7; });
  expect_refused("softcap", [](Problem& p) { p.softcap = 30; });
  expect_refused("sink", [](Problem& p) { p.has_sink = true; });
  expect_refused("output of float32", [](Problem& p) { p.o.dtype = DType::float32; });
  expect_refused("multiples of 8", [](Problem& p) { p.head_dim = 100; });
  expect_refused("no kernel", [](Problem& p) { p.head_dim = 512; });
  expect_refused("2^30", [](Problem& p) { p.lengths_k.max = int64_t{1} << 31; });
}

TEST(PackedHeads, share_a_tile_where_that_saves_tiles_or_masked_work) {
  constexpr ForwardConfig kConfig{.block_m = 128};
  const auto packed = [&](int64_t queries, int group, bool causal) {
    ForwardArguments a;
    a.q.batches = 1;
    a.q.heads = 2 * group;
    a.q.rows = queries;
    a.heads_per_kv_head = group;
    a.causal = causal;
    return 1 << forward_pack_log2(kConfig, a);
  };
  EXPECT_EQ(packed(1, 8, false), 8);
  EXPECT_EQ(packed(1, 1, false), 1);
  EXPECT_EQ(packed(1, 12, true), 4);    // of a group, whole packs only
  EXPECT_EQ(packed(1, 64, true), 16);   // a warp's rows
  EXPECT_EQ(packed(512, 8, false), 1);  // full tiles already
  EXPECT_EQ(packed(513, 8, false), 8);
  EXPECT_EQ(packed(512, 8, true), 8);
  EXPECT_EQ(packed(100, 2, true), 1);               // two tiles either way
  EXPECT_EQ(packed(int64_t{1} << 29, 8, true), 2);  // row numbers are 32-bit
}

TEST(TensorMap, obstacles_are_named) {
  alignas(16) static char memory[64];
  TensorSpan t{memory, 2, 10, 3, 64, 1920, 192, 64};
  EXPECT_EQ(tensor_map_obstacle(t), nullptr);
  t.data = memory + 2;
  EXPECT_NE(tensor_map_obstacle(t), nullptr);
  t.data = memory;
  t.row_stride = 100;  // 200 bytes
  EXPECT_NE(tensor_map_obstacle(t), nullptr);
  t.rows = 1;  // then its stride is never used
  EXPECT_EQ(tensor_map_obstacle(t), nullptr);
}

}  // namespace
}  // namespace fa3::hopper
