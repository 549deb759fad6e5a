// SPDX-License-Identifier: Apache-2.0
//
// Masks as data against the textbook under the same map and bits, in both passes: lengths next to
// the ends of blocks, maps for each sequence and head, and every other feature besides.
#include <gtest/gtest.h>

#include <vector>

#include "contract/fixture.h"
#include "support/cases/cache.h"
#include "support/oracle/textbook.h"

namespace fa3::test {
namespace {

class BlockMasks : public EngineTest {};
FA3_FOR_EVERY_ENGINE(BlockMasks);

Case with_mask(Case c, double hidden = 0.4, double partial = 0.3) {
  c.mask = {.on = true, .hidden = hidden, .partial = partial};
  return c;
}

TEST_P(BlockMasks, lengths_next_to_a_block) {
  for (int64_t seqlen_q : {1, 127, 129, 300}) {
    for (int64_t seqlen_k : {1, 128, 200, 530}) {
      for (const Case& c :
           in_each_dtype(with_mask(dense_case(1, seqlen_q, seqlen_k, 2, 1, 64, 64)))) {
        EXPECT_TRUE(agrees(c));
      }
    }
  }
}

TEST_P(BlockMasks, of_each_kind_of_block_alone) {
  for (auto [hidden, partial] : {std::pair{1.0, 0.0}, {0.0, 0.0}, {0.0, 1.0}, {0.8, 0.2}}) {
    for (const Case& c :
         in_each_dtype(with_mask(dense_case(1, 400, 700, 2, 2, 128, 128), hidden, partial))) {
      EXPECT_TRUE(agrees(c));
    }
  }
}

TEST_P(BlockMasks, of_their_own_for_sequences_and_heads) {
  for (bool by_sequence : {false, true}) {
    for (bool by_head : {false, true}) {
      Case c = with_mask(dense_case(3, 260, 390, 6, 2, 64, 64));
      c.mask.by_sequence = by_sequence;
      c.mask.by_head = by_head;
      c.d_lse = true;
      for (const Case& typed : in_each_dtype(c)) EXPECT_TRUE(agrees(typed));
    }
  }
}

TEST_P(BlockMasks, of_many_blocks) {
  for (uint64_t seed : {1, 2, 3}) {
    Case c = with_mask(dense_case(1, 1100, 2200, 1, 1, 64, 64), 0.7, 0.1);
    c.seed = seed;
    for (const Case& typed : in_each_dtype(c)) EXPECT_TRUE(agrees(typed));
  }
}

// On Hopper one kernel makes the lists of at most 32 rows and columns, three make those of more.
TEST_P(BlockMasks, of_about_as_many_rows_or_columns_as_a_short_map_has) {
  for (auto [seqlen_q, seqlen_k] : {std::pair{4096, 70}, {70, 4090}, {4097, 70}, {70, 4200}}) {
    for (const Case& c :
         in_each_dtype(with_mask(dense_case(1, seqlen_q, seqlen_k, 1, 1, 64, 64), 0.6, 0.1))) {
      EXPECT_TRUE(agrees(c));
    }
  }
}

TEST_P(BlockMasks, beside_causal_masks_and_windows) {
  for (int64_t left : {-1, 40, 300}) {
    Case c = with_mask(dense_case(1, 300, 411, 2, 1, 32, 32));
    c.causal = true;
    c.left = left;
    for (const Case& typed : in_each_dtype(c)) EXPECT_TRUE(agrees(typed));
  }
}

TEST_P(BlockMasks, of_head_dims_that_are_no_tiles) {
  for (const auto& [dim, dim_v] : {std::pair{24, 40}, {72, 128}, {96, 96}, {192, 128}}) {
    for (const Case& c : in_each_dtype(with_mask(dense_case(1, 200, 300, 2, 1, dim, dim_v)))) {
      EXPECT_TRUE(agrees(c));
    }
  }
}

TEST_P(BlockMasks, with_every_feature) {
  Case c = with_mask(dense_case(3, 0, 0, 4, 2, 24, 32));
  c.q = {.owned = {130, 3, 411}, .spare_rows = 4, .used = {101, 3, 400}};
  c.k = {.owned = {500, 1, 413}, .spare_rows = 2, .used = {480, 0, 413}};
  c.mask.by_sequence = c.mask.by_head = true;
  c.left = 200;
  c.right = 3;
  c.softcap = 5;
  c.sink = c.d_lse = true;
  c.dropout_p = 0.2f;
  c.dropout_seed = 5;
  for (const Case& typed : in_each_dtype(c)) EXPECT_TRUE(agrees(typed));
}

// Sequences of no queries, of no keys, of one, and that end with a block, beside each other.
TEST_P(BlockMasks, of_packed_sequences) {
  for (int64_t dim : {64, 128}) {
    for (bool causal : {false, true}) {
      Case c = with_mask(dense_case(7, 0, 0, 4, 2, dim, dim));
      c.q = {.owned = {130, 0, 1, 256, 128, 300, 70}, .spare_rows = 4};
      c.k = {.owned = {300, 200, 129, 256, 0, 1, 213}, .spare_rows = 2};
      c.mask.by_sequence = c.mask.by_head = causal == (dim == 64);
      c.causal = causal;
      c.left = c.mask.by_head && causal ? 150 : -1;
      c.d_lse = causal;
      for (const Case& typed : in_each_dtype(c)) EXPECT_TRUE(agrees(typed));
    }
  }
}

TEST_P(BlockMasks, of_sequences_in_use_in_part) {
  for (bool packed : {false, true}) {
    for (int64_t dim : {64, 96}) {
      Case c = with_mask(dense_case(4, 411, 513, 2, 1, dim, dim));
      if (packed) {
        c.q = {.owned = {411, 130, 257, 3}, .spare_rows = 1};
        c.k = {.owned = {513, 300, 128, 129}, .spare_rows = 200};
      }
      c.q.used = {300, 129, 0, 3};
      c.k.used = {500, 256, 128, 1};
      c.mask.by_sequence = packed;
      c.right = packed ? 40 : -1;
      for (const Case& typed : in_each_dtype(c)) EXPECT_TRUE(agrees(typed));
    }
  }
}

TEST_P(BlockMasks, of_long_packed_sequences_with_peaked_scores) {
  for (Scores scores : {Scores::normal, Scores::rising, Scores::falling, Scores::step}) {
    Case c = with_mask(dense_case(2, 0, 0, 1, 1, 128, 128), 0.3, 0.1);
    c.q = {.owned = {70, 300}};
    c.k = {.owned = {900, 777}};
    c.scores = scores;
    c.amount = 200;
    for (const Case& typed : in_each_dtype(c)) EXPECT_TRUE(agrees(typed));
  }
}

TEST_P(BlockMasks, beside_chunks) {
  Case c = with_mask(dense_case(1, 300, 411, 2, 1, 64, 64));
  c.causal = true;
  c.chunk = 100;
  for (const Case& typed : in_each_dtype(c)) EXPECT_TRUE(agrees(typed));
}

// As a tree of drafted tokens: few queries, a map for each sequence, keys in pages.
TEST_P(BlockMasks, over_pages_of_a_cache) {
  for (int64_t page_size : {7, 16}) {  // their last one ends in the last block of keys
    for (int64_t dim : {64, 128}) {
      Case c = with_mask(dense_case(3, 5, 360, 8, 2, dim, dim), 0.3, 0.5);
      c.k.used = {300, 360, 7};
      c.mask.by_sequence = true;
      for (fa3_dtype dtype : {FA3_FLOAT32, FA3_FLOAT16, FA3_BFLOAT16}) {
        c.dtype = dtype;
        const Inputs inputs = make_inputs(c);
        const Cached cached = in_cache(c, inputs, {.page_size = page_size});
        if (const std::string reason = refusal(engine(), cached.c, cached.inputs); reason != "") {
          leave_out(reason);
          continue;
        }
        EXPECT_TRUE(forward_agrees({engine(), c}, textbook_forward(c, inputs),
                                   forward(cached.c, cached.inputs),
                                   run_forward(baseline(), c, inputs)));
      }
    }
  }
}

TEST_P(BlockMasks, with_peaked_scores) {
  for (Scores scores : {Scores::rising, Scores::falling, Scores::step, Scores::last_key}) {
    Case c = with_mask(dense_case(1, 256, 900, 1, 1, 64, 64), 0.5, 0.2);
    c.scores = scores;
    c.amount = 200;
    for (const Case& typed : in_each_dtype(c)) EXPECT_TRUE(agrees(typed));
  }
}

TEST_P(BlockMasks, of_full_blocks_alone_change_no_result) {
  const Case plain = dense_case(2, 300, 500, 2, 1, 64, 64, FA3_BFLOAT16);
  if (!does(with_mask(plain, 0, 0))) return;
  EXPECT_TRUE(agrees(with_mask(plain, 0, 0)));
}

TEST_P(BlockMasks, give_the_same_bits_again) {
  Case packed = with_mask(dense_case(3, 0, 0, 4, 2, 128, 128, FA3_BFLOAT16));
  packed.q = packed.k = {.owned = {600, 129, 400}};
  packed.causal = true;
  for (const Case& c : {with_mask(dense_case(2, 600, 900, 4, 2, 64, 64, FA3_BFLOAT16)), packed}) {
    if (!does(c)) continue;
    const Inputs inputs = make_inputs(c);
    const Runs one = both(c, inputs), two = both(c, inputs);
    EXPECT_TRUE(bits_equal("o", one.forward.o, two.forward.o));
    if (!one.backward) continue;
    EXPECT_TRUE(bits_equal("dq", one.backward->dq, two.backward->dq));
    EXPECT_TRUE(bits_equal("dk", one.backward->dk, two.backward->dk));
  }
}

}  // namespace
}  // namespace fa3::test
