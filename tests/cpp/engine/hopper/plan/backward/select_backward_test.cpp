// SPDX-License-Identifier: Apache-2.0
// Which row of the catalogue of backward kernels a shape gets.
#include <gtest/gtest.h>

#include <set>

#include "engine/hopper/catalogue.h"
#include "engine/hopper/plan/backward/plan_backward.h"
#include "engine/hopper/plan/plain_problem.h"

namespace fa3::hopper {
namespace {

TEST(SelectBackwardKernel, has_float32_gradients_to_128_columns) {
  for (const Variant variant : {Variant::kDense, Variant::kGeneral}) {
    for (const int64_t d : {8, 64, 72, 128, 136}) {
      const BackwardRow* const row =
          select_backward({.head_dim = d, .head_dim_v = d, .variant = variant, .wide = true});
      ASSERT_EQ(row != nullptr, d <= 128) << d;
      if (row == nullptr) continue;
      const BackwardConfig& c = row->kernel;
      EXPECT_TRUE(c.wide() && c.general() == (variant == Variant::kGeneral) &&
                  c.shape.head_dim == (d <= 64 ? 64 : 128))
          << d;
      EXPECT_FALSE(c.can_take_short_sequences());
    }
  }
}

// Where a row for the same head dims has none, and no CTA is without keys of its own.
TEST(SelectBackwardKernel, has_pairs_of_128_columns_for_key_blocks_in_even_numbers) {
  const auto takes = [](int64_t d, int64_t dv, int64_t keys) {
    const BackwardRow* const row = select_backward(
        {.head_dim = d, .head_dim_v = dv, .dense = DenseCall{.queries = 8192, .keys = keys}});
    return row != nullptr && row->kernel.in_pairs();
  };
  for (const int64_t d : {64, 96, 104, 128, 136, 192, 256, 264}) {
    EXPECT_EQ(takes(d, d, 1024), d == 104 || d == 128) << d;
  }
  EXPECT_TRUE(takes(64, 128, 1024) && takes(128, 8, 1024));
  for (const int64_t keys : {129, 200, 256, 1000, 2048}) EXPECT_TRUE(takes(128, 128, keys)) << keys;
  for (const int64_t keys : {1, 128, 257, 384, 1100}) EXPECT_FALSE(takes(128, 128, keys)) << keys;
}

// Where most SMs get a key block of 128 keys, or two under a causal mask. Calls with sinks have a
// preprocess of other blocks.
TEST(SelectBackwardKernel, has_long_sums_at_192_and_128_columns) {
  const auto takes = [](int64_t d, int64_t dv, const DenseCall& call) {
    return select_backward({.head_dim = d, .head_dim_v = dv, .dense = call})
        ->kernel.has_long_sums();
  };
  const DenseCall full{.queries = 1000, .keys = 1000, .key_heads = 13},
      causal{.queries = 1000, .keys = 1000, .key_heads = 33, .is_causal = true};
  for (const int64_t d : {64, 128, 136, 192, 200, 256}) {
    EXPECT_EQ(takes(d, 128, full), d == 136 || d == 192) << d;
    EXPECT_FALSE(takes(d, 136, full)) << d;
  }
  EXPECT_TRUE(takes(192, 64, causal));
  const auto takes_changed = [&](DenseCall call, const auto& change) {
    change(call);
    return takes(192, 128, call);
  };
  EXPECT_TRUE(takes_changed(full, [](DenseCall& c) { c.deterministic = true; }));
  EXPECT_FALSE(takes_changed(full, [](DenseCall& c) { c.has_sink = true; }));
  EXPECT_FALSE(takes_changed(full, [](DenseCall& c) { c.key_heads = 12; }));
  EXPECT_FALSE(takes_changed(full, [](DenseCall& c) { c.is_causal = true; }));
  EXPECT_FALSE(takes_changed(causal, [](DenseCall& c) { c.key_heads = 32; }));
  EXPECT_FALSE(select_backward({.head_dim = 192, .head_dim_v = 128})->kernel.has_long_sums());
}

// Key blocks of few steps have eight or fewer on average; persistent CTAs add in any order.
TEST(SelectBackwardKernel, has_persistent_CTAs_at_64_columns_for_key_blocks_of_few_steps) {
  const auto takes = [](int64_t d, const DenseCall& call) {
    return select_backward({.head_dim = d, .head_dim_v = d, .dense = call})->kernel.persistent();
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

// Every call that has a forward has gradients.
TEST(SelectBackwardKernel, gives_the_narrowest_that_fits_wherever_the_forward_has_a_kernel) {
  std::set<const BackwardRow*> chosen;
  const Problem p = plain();
  const ForwardCall call = call_of(p);
  for (int64_t d = 8; d <= 264; d += 8) {
    for (int64_t dv = 8; dv <= 264; dv += 8) {
      const BackwardRow* const row = select_backward({.head_dim = d, .head_dim_v = dv});
      const bool forward = is_served({p, call, {}, {.head_dim = d, .head_dim_v = dv}, kSms});
      ASSERT_EQ(row != nullptr, forward) << d << "/" << dv;
      if (row == nullptr) continue;
      chosen.insert(row);
      const BackwardConfig& c = row->kernel;
      for (const BackwardRow& other : kBackwardTiles) {
        const BackwardConfig& o = other.kernel;
        if (o.shape.head_dim < d || o.shape.head_dim_v < dv) continue;
        EXPECT_LE(c.shape.head_dim + c.shape.head_dim_v, o.shape.head_dim + o.shape.head_dim_v)
            << d << "/" << dv;
      }
    }
  }
  EXPECT_EQ(chosen.size(), kBackwardTiles.size()) << "a kernel that nothing chooses is built";
}

}  // namespace
}  // namespace fa3::hopper
