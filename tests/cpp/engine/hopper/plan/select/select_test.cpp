// SPDX-License-Identifier: Apache-2.0
// Which row of the catalogue a call gets.
#include <gtest/gtest.h>

#include <optional>

#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/plan/plan_forward.h"

namespace fa3::hopper {
namespace {

constexpr int64_t kSomeKeys[] = {1, 100, 1000, 1535, 1536, 4096, 100000};

// A call that has these needs alone.
struct Sized {
  Problem problem = plain();
  ForwardCall call = call_of(problem);
  Needs needs;

  Tile tile(const Sizes& sizes) const {
    return first_that_suits({problem, call, needs, sizes, kSms});
  }
};

// Calls visit(sizes) for all that differ in what the choice may depend on.
template <class Visitor>
void for_each_size(Visitor&& visit) {
  for (int64_t d = 8; d <= 264; d += 8) {
    for (int64_t dv = 8; dv <= 264; dv += 8) {
      for (const int64_t keys : kSomeKeys) {
        for (const int64_t rows : {int64_t{64}, INT64_MAX}) visit(Sizes{d, dv, keys, keys, rows});
      }
    }
  }
}

bool holds(const Tile& tile, const Sizes& sizes) {
  return tile.kernel().shape.head_dim >= sizes.head_dim &&
         tile.kernel().shape.head_dim_v >= sizes.head_dim_v;
}
int columns(const Tile& tile) {
  return tile.kernel().shape.head_dim + tile.kernel().shape.head_dim_v;
}

TEST(Select, gives_the_narrowest_tile_that_holds_the_heads_and_suits_the_sizes) {
  const Sized plain;
  for_each_size([&](const Sizes& sizes) {
    const Request r{plain.problem, plain.call, {}, sizes, kSms};
    const Tile chosen = first_that_suits(r);
    ASSERT_EQ(bool(chosen), sizes.head_dim <= 256 && sizes.head_dim_v <= 256);
    if (!chosen) return;
    EXPECT_TRUE(holds(chosen, sizes) && suits(chosen, r));
    for (const Tile& tile : tiles()) {
      if (form_of(tile, r) == nullptr || !suits(tile, r)) continue;
      ASSERT_LE(columns(chosen), columns(tile)) << sizes.head_dim << "/" << sizes.head_dim_v;
    }
  });
}

TEST(Select, gives_short_keys_smaller_tiles) {
  const Sized plain;
  for_each_size([&](Sizes sizes) {
    const Tile tile = plain.tile(sizes);
    if (!tile) return;
    sizes.keys = sizes.longest = 100000;
    EXPECT_LE(tile.kernel().shape.block_m, plain.tile(sizes).kernel().shape.block_m);
  });
}

// Eight heads of 64 queries share keys.
TEST(Select, gives_groups_of_short_sequences_several_ctas_an_sm) {
  const Sized plain;
  for (const int64_t d : {64, 128}) {
    const auto ctas_per_sm = [&](int64_t keys, int64_t rows) {
      return plain.tile({d, d, keys, keys, rows}).kernel().shape.ctas_per_sm;
    };
    EXPECT_GT(ctas_per_sm(64, 8 * 64), 1);
    EXPECT_EQ(ctas_per_sm(64, 8 * 65), 1);
    EXPECT_EQ(ctas_per_sm(65, 8 * 64), 1);
  }
}

TEST(SelectContinued, has_a_kernel_for_the_steps_of_a_ring_alone) {
  const auto tiles_after = [](auto change) -> std::optional<Tiles> {
    Problem p = plain();
    p.partial.on = true;
    change(p);
    if (!continues(p)) return std::nullopt;
    const Kernel& c = chosen_kernel(p);
    EXPECT_TRUE(c.continued() && c.shape.head_dim >= p.head_dim &&
                c.shape.head_dim_v >= p.head_dim_v);
    return c.tiles;
  };
  EXPECT_EQ(tiles_after([](Problem&) {}), Tiles::kDense);
  EXPECT_EQ(tiles_after([](Problem& p) { p.mask.right = 0; }), Tiles::kDense);
  EXPECT_EQ(tiles_after([](Problem& p) { p.o.dtype = DType::float32; }), Tiles::kDense);
  EXPECT_EQ(tiles_after([](Problem& p) { p.head_dim = 64; }), Tiles::kDense);
  EXPECT_EQ(tiles_after([](Problem& p) { p.mask.left = 9; }), Tiles::kVarlen);
  EXPECT_EQ(tiles_after([](Problem& p) { p.lengths_k.varlen = true; }), Tiles::kVarlen);
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
  for (const auto change : merged_apart) EXPECT_EQ(tiles_after(change), std::nullopt);
}

// Their dense kernels write O in float32 too.
TEST(SelectContinued, takes_first_steps_that_are_long) {
  Problem p = plain();
  p.o.dtype = DType::float32;
  EXPECT_FALSE(chosen_kernel(p).continued());
  p.lengths_k.max = 2000;
  EXPECT_TRUE(chosen_kernel(p).continued());
  p.o.dtype = p.dtype;
  EXPECT_FALSE(chosen_kernel(p).continued());
  p.o.dtype = DType::float32;
  p.mask.left = 9;
  EXPECT_FALSE(chosen_kernel(p).continued());
}

}  // namespace
}  // namespace fa3::hopper
