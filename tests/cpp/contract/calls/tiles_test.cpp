// SPDX-License-Identifier: Apache-2.0
//
// Shapes around the tile sizes of the backward pass: lengths next to a multiple of a block, several
// key blocks in a part and several parts in a head, masks whose edges cross blocks.
#include <gtest/gtest.h>

#include "contract/fixture.h"

namespace fa3::test {
namespace {

class Tiles : public EngineTest {};
FA3_FOR_EVERY_ENGINE(Tiles);

TEST_P(Tiles, lengths_next_to_a_block) {
  for (int64_t seqlen_q : {1, 6, 7, 95, 97, 200}) {
    for (int64_t seqlen_k : {1, 63, 65, 191, 193, 385}) {
      for (bool causal : {false, true}) {
        Case c = dense_case(1, seqlen_q, seqlen_k, 2, 1, 40, 72);
        c.causal = causal;
        EXPECT_TRUE(agrees(c));
      }
    }
  }
}

// The 5 key blocks of a head in one part (32 heads), in two parts, in five.
TEST_P(Tiles, any_number_of_parts) {
  for (int64_t heads_k : {32, 16, 4}) {
    for (int64_t left : {-1, 150}) {
      Case c = dense_case(1, 100, 800, heads_k, heads_k, 16, 16, FA3_BFLOAT16);
      c.left = left;
      c.right = left < 0 ? 0 : 20;
      EXPECT_TRUE(agrees(c));
    }
  }
}

// Tiles of unequal length, too few for all processors: an engine may deal them in equal parts. The
// last tile ends early, or there is a tile without another.
TEST_P(Tiles, few_causal_heads) {
  struct FewHeads {
    int64_t batch, heads, queries, more_keys, dim;
    fa3_dtype dtype;
  };
  for (const auto& [batch, heads, queries, more_keys, dim, dtype] :
       {FewHeads{1, 1, 1300, 0, 128, FA3_FLOAT16},
        {1, 2, 1450, 77, 128, FA3_BFLOAT16},
        {2, 1, 1280, 500, 128, FA3_BFLOAT16},
        {1, 1, 1800, 0, 64, FA3_FLOAT16},
        {1, 1, 1800, 9, 64, FA3_BFLOAT16},
        {1, 1, 800, 60, 256, FA3_BFLOAT16}}) {
    const int64_t rows = by_effort(queries / 8, queries, queries);
    Case c = dense_case(batch, rows, rows + more_keys, heads, 1, dim, dim, dtype);
    c.causal = true;
    EXPECT_TRUE(agrees(c));
  }
}

// Chunks that end within blocks, with them, and hold many of them; alone, and in windows.
TEST_P(Tiles, chunks_of_any_length) {
  const int64_t most = by_effort(140, 700, 700), heads = by_effort(2, 4, 4);
  for (const int64_t chunk : {1, 7, 64, 100, 128, 333, 700, 2000}) {
    for (const auto& [queries, keys] : {std::pair{most, most}, {90, most}, {most, most / 2}}) {
      Case c = dense_case(1, queries, keys, heads, heads / 2, 64, 64, FA3_BFLOAT16);
      c.chunk = chunk;
      EXPECT_TRUE(agrees(c));
      c.causal = true;
      c.left = 90;
      EXPECT_TRUE(agrees(c));
    }
  }
}

// Bands before and behind the diagonal, whose first or last queries see nothing; and none at all.
TEST_P(Tiles, windows_beside_the_diagonal) {
  struct Band {
    int64_t left, right;
    int32_t shift;
  };
  const int64_t most = by_effort(140, 400, 400), heads = by_effort(2, 4, 4);
  for (const auto& [left, right, shift] :
       {Band{-1, 0, -1}, {0, -1, 1}, {100, 0, -150}, {0, 5, 3}, {3, 90, 200}, {5, 5, -1000}}) {
    for (const auto& [queries, keys] : {std::pair{most, most}, {3, most}, {most, 90}}) {
      Case c = dense_case(1, queries, keys, heads, heads / 2, 64, 64, FA3_BFLOAT16);
      c.left = left;
      c.right = right;
      c.shift = shift;
      EXPECT_TRUE(agrees(c));
      c.causal = true;
      EXPECT_TRUE(agrees(c));
    }
  }
}

// Some engines copy 16 bytes at least; nothing of what lies behind a row counts or is written.
TEST_P(Tiles, rows_that_end_within_16_bytes) {
  for (const auto& [dim, dim_v] : {std::pair{59, 59}, {1, 111}, {100, 7}, {250, 129}}) {
    Case c =
        dense_case(2, 90, by_effort(70, 700, 700), by_effort(4, 8, 8), 2, dim, dim_v, FA3_BFLOAT16);
    c.in = c.out = Layout::spaced;
    c.causal = true;
    for (const bool o_float32 : {false, true}) {
      c.o_float32 = o_float32;
      for (const int num_splits : {0, 3}) {
        c.num_splits = num_splits;
        EXPECT_TRUE(agrees(c));
      }
    }
  }
  Case peaked = dense_case(1, 200, by_effort(300, 900, 900), 2, 2, 59, 59, FA3_FLOAT16);
  peaked.in = peaked.out = Layout::spaced;
  peaked.gain = 300;
  EXPECT_TRUE(agrees(peaked));
  Case packed = dense_case(3, 0, 0, 4, 2, 59, 59, FA3_FLOAT16);
  packed.in = packed.out = Layout::spaced;
  packed.q = {.owned = {130, 0, 200}, .spare_rows = 4};
  packed.k = {.owned = {300, 1, 413}, .spare_rows = 2};
  packed.softcap = 5;
  EXPECT_TRUE(agrees(packed));
}

TEST_P(Tiles, every_feature_across_blocks) {
  Case c = dense_case(3, 0, 0, 6, 2, 48, 64, FA3_FLOAT16);
  c.q = {.owned = {130, 3, 411}, .spare_rows = 4, .used = {101, 3, 400}};
  c.k = {.owned = {500, 1, 413}, .spare_rows = 2, .used = {480, 0, 413}};
  c.left = 200;
  c.right = 3;
  c.softcap = 5;
  c.sink = true;
  EXPECT_TRUE(agrees(c));
}

}  // namespace
}  // namespace fa3::test
