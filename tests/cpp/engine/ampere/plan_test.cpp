// SPDX-License-Identifier: Apache-2.0
//
// What the planner decides, as plain numbers: tiles against brute force, copies, packs.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "engine/ampere/plan/copy_width.h"
#include "engine/ampere/plan/forward_plan.h"

namespace fa3::ampere {
namespace {

constexpr int kSms = 108, kSmemOfSm = 164 << 10;  // an A100's

Problem plain() {
  Problem p;
  p.batch = 2;
  p.heads_q = p.heads_k = 4;
  p.head_dim = p.head_dim_v = 128;
  p.dtype = p.kv_dtype = p.o.dtype = DType::bfloat16;
  p.lengths_q = p.lengths_k = {.max = 1000, .total = 2000};
  p.device = FA3_CUDA;
  return p;
}

ForwardPlan plan_of(const Problem& p) {
  const ForwardConfig config = select_kernel(p, kSmemOfSm)->kernel;
  return plan_launch({config, nullptr}, cuda::call_of(p), select_pack(p, config), kSms,
                     p.num_splits);
}

// How often each (sequence, row of it, head) is in a tile.
using Counts = std::map<std::tuple<int, int, int>, int>;

Counts rows_of_tiles(const ForwardPlan& plan) {
  Counts counts;
  const TileSchedule& s = plan.schedule;
  for (int number = 0; number < plan.num_tiles; ++number) {
    const TileOfSequence tile = s.tile(number);
    if (tile.first_row < 0) continue;
    for (int row = tile.first_row; row < tile.first_row + s.block_m; ++row) {
      const int query = s.pack.query(row);
      if (query >= tile.rows.queries.count) continue;
      ++counts[{tile.sequence, query, s.pack.head(tile.pack, row)}];
    }
  }
  return counts;
}

void expect_once(const Counts& counts, size_t rows) {
  EXPECT_EQ(counts.size(), rows);
  for (const auto& [row, times] : counts) {
    ASSERT_EQ(times, 1) << std::get<0>(row) << ", " << std::get<1>(row) << ", " << std::get<2>(row);
  }
}

TEST(BlockMask, has_a_kernel_whose_tiles_divide_its_blocks_beside_everything) {
  for (int64_t queries : {1, 16, 300}) {
    for (int64_t dim : {8, 64, 100, 128, 192, 256}) {
      for (const DType keys : {DType::bfloat16, DType::float8_e4m3}) {
        for (const bool drops : {false, true}) {
          Problem p = plain();
          p.block_mask.on = true;
          p.lengths_q.max = queries;
          p.head_dim = p.head_dim_v = dim;
          p.kv_dtype = keys;
          p.dropout.threshold = drops ? 5 : 0;
          const Row* row = select_kernel(p, kSmemOfSm);
          if (drops && keys == DType::float8_e4m3) continue;  // nobody has these
          ASSERT_TRUE(row) << queries << " " << dim;
          const ForwardConfig& c = row->kernel;
          EXPECT_TRUE(c.block_mask);
          EXPECT_EQ(c.dropout, drops);
          EXPECT_EQ(kMaskBlock % c.block_m + kMaskBlock % c.block_n, 0);
        }
      }
    }
  }
}

TEST(BlockMask, is_looked_at_once_for_all_heads_of_a_tile) {
  Problem p = plain();
  p.heads_q = 16;
  p.block_mask.on = true;
  p.lengths_q.max = 4;
  const ForwardConfig& c = select_kernel(p, kSmemOfSm)->kernel;
  EXPECT_GT(select_pack(p, c).heads(), 1);
  Problem own_maps = p;
  own_maps.block_mask.heads = 16;
  EXPECT_EQ(select_pack(own_maps, c).heads(), 1);
  Problem many_rows = p;
  many_rows.lengths_q.max = kMaskBlock + 1;
  ForwardConfig wide = c;
  wide.block_m = 2 * kMaskBlock;
  EXPECT_EQ(select_pack(many_rows, wide).heads(), 1);
}

TEST(Tiles, have_every_row_once) {
  for (int64_t right : {MaskRule::kUnbounded, int64_t{0}}) {
    Problem p = plain();
    p.mask.right = right;
    expect_once(rows_of_tiles(plan_of(p)), size_t(2 * 1000 * 4));
  }
}

TEST(Tiles, of_packed_sequences_have_every_row_once_those_of_nobody_too) {
  const int32_t cu[] = {0, 5, 5, 300, 420};
  Problem p = plain();
  p.batch = 4;
  p.lengths_q = {.cu_seqlens = cu, .max = 295, .total = 425, .varlen = true, .in_one_tensor = true};
  expect_once(rows_of_tiles(plan_of(p)), size_t(425 * 4));
}

TEST(Tiles, of_garbage_stay_within_the_tensor) {
  const int32_t cu[] = {-7, 2000000000, 3, -1, 900};
  Problem p = plain();
  p.batch = 4;
  p.lengths_q = {.cu_seqlens = cu, .max = 295, .total = 425, .varlen = true, .in_one_tensor = true};
  const ForwardPlan plan = plan_of(p);
  for (int number = 0; number < plan.num_tiles; ++number) {
    const SequenceRows rows = plan.schedule.tile(number).rows;
    EXPECT_GE(rows.queries.begin, 0);
    EXPECT_LE(rows.queries.begin + rows.queries.count, 425);
  }
}

TEST(Tiles, of_few_queries_are_shared_by_heads) {
  Problem p = plain();
  p.lengths_q = {.max = 3, .total = 6};
  p.heads_q = 24;
  EXPECT_EQ(plan_of(p).schedule.pack.heads(), 2);  // of 6: the power of two that divides them
  p.heads_q = 128;
  EXPECT_EQ(plan_of(p).schedule.pack.heads(), 16);
  expect_once(rows_of_tiles(plan_of(p)), size_t(2 * 3 * 128));
  p.batch_invariant = true;
  EXPECT_EQ(plan_of(p).schedule.pack.heads(), 1);
}

TEST(Kernels, fit_the_shared_memory_of_every_gpu_since_ampere) {
  for (const Row& row : kForward) {
    EXPECT_LE(row.kernel.smem_bytes(), kSmallSmemBytes);
  }
}

TEST(Kernels, are_there_for_all_head_dims_to_256_and_values_of_any_width) {
  for (bool dropout : {false, true}) {
    for (int64_t d : {1, 64, 65, 128, 160, 256}) {
      for (int64_t dv : {1, 64, 128, 200, 512}) {
        Problem p = plain();
        p.head_dim = d;
        p.head_dim_v = dv;
        p.dropout.threshold = dropout ? 1000 : 0;
        EXPECT_TRUE(select_kernel(p, kSmemOfSm)) << d << ", " << dv;
      }
    }
  }
  Problem p = plain();
  p.head_dim = 257;
  EXPECT_FALSE(select_kernel(p, kSmemOfSm));
}

TEST(Kernels, are_those_whose_thread_blocks_have_room_on_an_sm) {
  const auto keys_on = [](int smem_of_sm) {
    return select_kernel(plain(), smem_of_sm)->kernel.block_n;
  };
  EXPECT_EQ(keys_on(228 << 10), 64);  // H100, B200
  EXPECT_EQ(keys_on(164 << 10), 48);  // A100
  EXPECT_EQ(keys_on(100 << 10), 32);  // 3090, 4090
}

TEST(Kernels, take_longer_steps_where_queries_see_many_keys) {
  Problem p = plain();
  p.head_dim = p.head_dim_v = 64;
  const auto keys_of_step = [&p](int64_t keys, int64_t right) {
    p.lengths_q.max = p.lengths_k.max = keys;
    p.mask.right = right;
    return select_kernel(p, kSmemOfSm)->kernel.block_n;
  };
  EXPECT_EQ(keys_of_step(512, MaskRule::kUnbounded), 64);
  EXPECT_EQ(keys_of_step(1024, MaskRule::kUnbounded), 128);
  EXPECT_EQ(keys_of_step(1024, 0), 64);
  EXPECT_EQ(keys_of_step(2048, 0), 128);
  EXPECT_EQ(keys_of_step(8192, 0), 128);
  p.batch_invariant = true;
  EXPECT_EQ(keys_of_step(8192, 0), 64);
}

TEST(Copies, are_as_wide_as_address_and_strides_allow) {
  alignas(16) static char memory[64];
  const auto width = [](int offset, int64_t row_stride, int64_t rows = 4) {
    return copy_width({.data = memory + offset,
                       .batches = 1,
                       .rows = rows,
                       .heads = 2,
                       .columns = 64,
                       .batch_stride = 3,  // of one entry: it does not count
                       .row_stride = row_stride,
                       .head_stride = 64});
  };
  EXPECT_EQ(width(0, 128), 16);
  EXPECT_EQ(width(8, 128), 8);
  EXPECT_EQ(width(0, 130), 4);
  EXPECT_EQ(width(0, 129), 2);
  EXPECT_EQ(width(2, 128), 2);
  EXPECT_EQ(width(0, 129, 1), 16);
}

Problem decoding(int64_t batch, int64_t keys) {
  Problem p = plain();
  p.batch = batch;
  p.heads_q = 32, p.heads_k = 8;
  p.lengths_q = {.max = 1, .total = batch};
  p.lengths_k = {.max = keys, .total = batch * keys};
  return p;
}

TEST(Splits, occupy_the_device_where_tiles_are_few) {
  const ForwardPlan plan = plan_of(decoding(1, 100000));
  EXPECT_EQ(plan.num_tiles, 8);
  EXPECT_EQ(plan.schedule.pack.heads(), 4);
  const int64_t most = int64_t{kSms} * plan.kernel.config.ctas_per_sm;
  EXPECT_LE(plan.num_ctas(), most);
  EXPECT_GE(plan.num_ctas(), most / 2);  // as many use all of the memory's bandwidth
  EXPECT_GE(plan.partials.bytes(), plan.num_ctas() * 4 * 128 * 4);
}

TEST(Splits, even_out_the_last_wave) {
  const ForwardPlan plan = plan_of(decoding(100, 8192));
  EXPECT_GT(plan.schedule.num_splits, 1);
  EXPECT_LT(plan.schedule.num_splits, 8);
}

TEST(Splits, are_none_where_tiles_are_many_or_keys_few) {
  EXPECT_EQ(plan_of(decoding(1, 100)).schedule.num_splits, 1);
  Problem many = plain();
  many.batch = 64;
  EXPECT_EQ(plan_of(many).schedule.num_splits, 1);
  EXPECT_EQ(plan_of(many).partials.bytes(), 0);
}

TEST(Splits, are_as_many_as_asked_for_but_have_blocks) {
  Problem p = decoding(2, 1000);
  p.num_splits = 5;
  EXPECT_EQ(plan_of(p).schedule.num_splits, 5);
  p.num_splits = 1000;
  EXPECT_EQ(plan_of(p).schedule.num_splits, 32);  // of 32 keys
}

TEST(Splits, have_every_block_once) {
  for (int blocks = 0; blocks < 20; ++blocks) {
    for (int num_splits = 1; num_splits < 7; ++num_splits) {
      TileSchedule schedule{};
      schedule.num_splits = num_splits;
      int next = 3;
      for (int i = 0; i < num_splits; ++i) {
        const auto [first, end] = schedule.split(i, 3, 3 + blocks);
        EXPECT_EQ(first, next);
        EXPECT_LE(end - first, blocks / num_splits + 1);
        next = end;
      }
      EXPECT_EQ(next, 3 + blocks);
    }
  }
}

}  // namespace
}  // namespace fa3::ampere
