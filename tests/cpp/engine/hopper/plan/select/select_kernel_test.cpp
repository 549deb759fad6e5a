// SPDX-License-Identifier: Apache-2.0
// Which row of a table a shape gets.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/plan/plan_e4m3.h"
#include "engine/hopper/tables/cache_table.h"
#include "engine/hopper/tables/continued_table.h"
#include "engine/hopper/tables/e4m3_table.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kSomeKeys[] = {1, 100, 1000, 1535, 1536, 4096, 100000};

// Calls visit(shape) for every shape that differs in what the choice may depend on.
template <class Visitor>
void for_each_shape(Visitor&& visit) {
  for (int64_t d = 8; d <= 264; d += 8) {
    for (int64_t dv = 8; dv <= 264; dv += 8) {
      for (int64_t keys : kSomeKeys) {
        visit(ForwardShape{d, dv, keys});
        visit(ForwardShape{d, dv, keys, 64});
      }
    }
  }
}

bool fits(const KernelInstance& row, const ForwardShape& shape) {
  return row.config.head_dim >= shape.head_dim && row.config.head_dim_v >= shape.head_dim_v &&
         shape.keys <= row.max_keys && shape.rows <= row.max_rows;
}

int columns(const KernelInstance& row) {
  return row.config.head_dim + row.config.head_dim_v;
}

TEST(SelectKernel, gives_a_row_that_fits_wherever_there_is_one_and_none_with_more_columns) {
  for_each_shape([](const ForwardShape& shape) {
    const int chosen = select_kernel(shape);
    bool any = false;
    for (const KernelInstance& row : kForwardTable) {
      if (!fits(row, shape)) continue;
      any = true;
      ASSERT_NE(chosen, kNoKernel) << shape.head_dim << "/" << shape.head_dim_v;
      EXPECT_LE(columns(kForwardTable[chosen]), columns(row))
          << shape.head_dim << "/" << shape.head_dim_v << ", " << shape.keys << " keys";
    }
    ASSERT_EQ(any, chosen != kNoKernel) << shape.head_dim << "/" << shape.head_dim_v;
    if (any) {
      EXPECT_TRUE(fits(kForwardTable[chosen], shape));
    }
  });
}

// By some shape.
std::set<int> chosen_rows(auto select) {
  std::set<int> chosen;
  for_each_shape([&](const ForwardShape& shape) { chosen.insert(select(shape)); });
  chosen.erase(kNoKernel);
  return chosen;
}
constexpr char kUnused[] = "a kernel that nothing chooses is built";

TEST(SelectKernel, gives_every_row_to_some_shape) {
  std::set<int> chosen;
  for (const bool split : {false, true}) {
    chosen.merge(chosen_rows([split](ForwardShape shape) {
      shape.split = split;
      return select_kernel(shape);
    }));
  }
  EXPECT_EQ(chosen.size(), kForwardTable.size()) << kUnused;
}

TEST(SelectKernel, gives_every_e4m3_row_to_some_shape) {
  const auto transposes = [](const KernelInstance& row) { return row.config.transposes_v; };
  auto chosen = size_t(std::ranges::count_if(kE4m3Table, transposes));  // by the call
  for (const Variant variant : {Variant::kDense, Variant::kCapped}) {
    const auto select = [=](const ForwardShape& s) { return select_e4m3_kernel(s, variant); };
    for (const int row : chosen_rows(select)) {
      EXPECT_EQ(kE4m3Table[size_t(row)].config.variant, variant);
      ++chosen;
    }
  }
  EXPECT_EQ(chosen, kE4m3Table.size()) << kUnused;
}

TEST(SelectKernel, gives_every_row_of_quantized_caches_to_some_shape) {
  const auto select = [](const ForwardShape& shape) { return select_kernel(shape, kCacheTable); };
  EXPECT_EQ(chosen_rows(select).size(), kCacheTable.size()) << kUnused;
}

TEST(SelectKernel, gives_short_keys_more_and_smaller_tiles) {
  for_each_shape([](const ForwardShape& shape) {
    ForwardShape longer = shape;
    longer.keys = 100000;
    if (select_kernel(shape) == kNoKernel) return;
    EXPECT_LE(kForwardTable[select_kernel(shape)].config.block_m,
              kForwardTable[select_kernel(longer)].config.block_m);
  });
}

// Eight heads of 64 queries share keys.
TEST(SelectKernel, gives_groups_of_short_sequences_several_ctas_an_sm) {
  for (int64_t d : {64, 128}) {
    const auto chosen = [d](int64_t keys, int64_t rows) {
      return kForwardTable[size_t(select_kernel({d, d, keys, rows}))].config;
    };
    EXPECT_GT(chosen(64, 8 * 64).ctas_per_sm, 1);
    EXPECT_EQ(chosen(64, 8 * 65).ctas_per_sm, 1);
    EXPECT_EQ(chosen(65, 8 * 64).ctas_per_sm, 1);
  }
}

TEST(SelectContinued, has_a_kernel_for_the_steps_of_a_ring_alone) {
  const auto variant_after = [](auto change) -> std::optional<Variant> {
    Problem p = plain();
    p.partial.on = true;
    change(p);
    const int row = select_continued_kernel(p);
    if (row == kNoKernel) return std::nullopt;
    const ForwardConfig& c = kContinuedTable[size_t(row)].config;
    EXPECT_TRUE(c.continued && c.head_dim >= p.head_dim && c.head_dim_v >= p.head_dim_v);
    return c.variant;
  };
  EXPECT_EQ(variant_after([](Problem&) {}), Variant::kDense);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.right = 0; }), Variant::kDense);
  EXPECT_EQ(variant_after([](Problem& p) { p.o.dtype = DType::float32; }), Variant::kDense);
  EXPECT_EQ(variant_after([](Problem& p) { p.head_dim = 64; }), Variant::kDense);
  EXPECT_EQ(variant_after([](Problem& p) { p.mask.left = 9; }), Variant::kGeneral);
  EXPECT_EQ(variant_after([](Problem& p) { p.lengths_k.varlen = true; }), Variant::kGeneral);
  void (*const merged_apart[])(Problem&) = {[](Problem& p) { p.softcap = 5; },
                                            [](Problem& p) { p.has_sink = true; },
                                            [](Problem& p) { p.dropout.threshold = 5; },
                                            [](Problem& p) { p.block_mask.on = true; },
                                            [](Problem& p) { p.kv_dtype = DType::float8_e4m3; },
                                            [](Problem& p) { p.key_places.elsewhere = true; },
                                            [](Problem& p) { p.batch_invariant = true; },
                                            [](Problem& p) { p.head_dim = 100; },
                                            [](Problem& p) { p.head_dim_v = 136; },
                                            [](Problem& p) { p.lengths_q.max = 64; }};
  for (const auto change : merged_apart) EXPECT_EQ(variant_after(change), std::nullopt);
}

// Their dense kernels write O in float32 too.
TEST(SelectContinued, takes_first_steps_that_are_long) {
  Problem p = plain();
  p.o.dtype = DType::float32;
  EXPECT_EQ(select_continued_kernel(p), kNoKernel);
  p.lengths_k.max = 2000;
  EXPECT_NE(select_continued_kernel(p), kNoKernel);
  p.o.dtype = p.dtype;
  EXPECT_EQ(select_continued_kernel(p), kNoKernel);
  p.o.dtype = DType::float32;
  p.mask.left = 9;
  EXPECT_EQ(select_continued_kernel(p), kNoKernel);
}

}  // namespace
}  // namespace fa3::hopper
