// SPDX-License-Identifier: Apache-2.0
//
// Attention to latent caches (fa3/mla.h), for rows of 16 bits and of 656 bytes, beside double
// precision. Memory ends with the tensors, and what no valid entry names is NaN: latent_call.h.
#include <gtest/gtest.h>

#include <algorithm>

#include "contract/calls/latent_fixture.h"
#include "support/latent/latent_call.h"

namespace fa3::test {
namespace {

class Latent : public LatentCalls<LatentCall, LatentCase, fa3_mla_forward_supported,
                                  fa3_mla_forward_workspace_size, fa3_mla_forward> {
 protected:
  // With rows of 16 bits in both types, and with those of 656 bytes.
  void expect_right(LatentCase c) {
    for (const auto& [rows, dtype] : {std::pair{FA3_MLA_ROWS_LATENT, FA3_BFLOAT16},
                                      {FA3_MLA_ROWS_LATENT, FA3_FLOAT16},
                                      {FA3_MLA_ROWS_GROUP128, FA3_BFLOAT16}}) {
      c.rows = rows, c.dtype = dtype;
      c.rope_apart = c.rope_apart && rows == FA3_MLA_ROWS_LATENT;
      EXPECT_EQ(run(c), "") << describe(c);
      ++c.seed;
    }
  }
};
FA3_FOR_EVERY_ENGINE(Latent);

TEST_P(Latent, any_number_of_heads) {
  for (const int64_t heads : {1, 3, 9, 16, 17, 32, 33, 63, 64, 65, 126, 128}) {
    expect_right({.dim = heads % 2 ? 576 : 512, .heads = heads, .keys = {70, 3}});
  }
}

TEST_P(Latent, any_number_of_new_tokens) {
  for (const int64_t tokens : {2, 3, 4, 5, 8, 17}) {
    for (const bool causal : {false, true}) {
      expect_right({.tokens = tokens, .heads = 5, .keys = {100, 9, 0}, .causal = causal});
    }
  }
  expect_right({.tokens = 512, .heads = 1, .keys = {130}, .causal = true});
}

TEST_P(Latent, pages_of_any_size) {
  for (const int64_t page_size : {1, 2, 3, 16, 53, 64, 128, 576}) {
    expect_right({.heads = 4, .page_size = page_size, .keys = {130, 64, 1}});
  }
  expect_right({.heads = 4, .page_size = 48, .keys = {90, 40}, .one_page = true});
}

TEST_P(Latent, lengths_next_to_a_block) {
  for (const int32_t keys : {0, 1, 63, 64, 65, 127, 128, 129, 700}) {
    expect_right({.heads = 6, .keys = {keys}});
    expect_right({.tokens = 3, .heads = 6, .keys = {keys, 5}, .causal = true});
  }
}

// Tables and indices of no entry end before a page without memory.
TEST_P(Latent, no_sequence_and_no_query) {
  expect_right({.keys = {}});
  expect_right({.keys = {}, .top = 5});
  expect_right({.tokens = 0, .keys = {40, 9}});
  expect_right({.heads = 3, .keys = {40, 9}, .queries = {0, 0}});
}

TEST_P(Latent, sequences_without_keys) {
  for (const bool infinite : {false, true}) {
    for (const bool sink : {false, true}) {
      expect_right({.tokens = 2,
                    .keys = {0, 0, 0},
                    .sink = sink,
                    .lse_with_sink = !infinite,
                    .infinite_empty_lse = infinite});
    }
  }
}

TEST_P(Latent, packed_queries) {
  expect_right({.heads = 7, .keys = {70, 9, 130, 0}, .queries = {3, 0, 2, 4}, .causal = true});
  expect_right({.heads = 128, .keys = {70, 9}, .queries = {1, 2}, .sink = true});
  expect_right({.heads = 3, .keys = {0, 0}, .queries = {2, 1}, .top = 70, .has_count = true});
}

// -1, beyond the cache, of both ends of int32; counts below 0 and above what there is.
TEST_P(Latent, indices_of_any_value) {
  for (const int64_t top : {0, 1, 63, 64, 65, 200}) {
    for (const bool has_count : {false, true}) {
      for (const int64_t page_size : {1, 53, 64}) {
        expect_right({.tokens = 2,
                      .heads = 5,
                      .page_size = page_size,
                      .keys = {0, 0, 0},
                      .top = top,
                      .has_count = has_count,
                      .sink = true});
      }
    }
  }
  expect_right({.tokens = 2, .keys = {0}, .top = 64, .has_count = true, .no_index_counts = true});
}

TEST_P(Latent, sinks_of_any_size) {
  for (const bool in_lse : {false, true}) {
    expect_right({.heads = 40, .keys = {70, 0}, .sink = true, .lse_with_sink = in_lse});
  }
}

TEST_P(Latent, tensors_in_every_form) {
  for (const bool wide : {false, true}) {
    expect_right({.keys = {90, 0}, .query_apart = true, .wide_output = wide});
    expect_right({.keys = {90, 0}, .rope_apart = true, .wide_output = wide, .spread = 30});
    expect_right({.dim = 512, .keys = {90, 0}, .wide_output = wide, .spread = 4});
  }
}

// Rows of bytes whose scales are subnormal, tiny, huge or 0, or differ from key to key.
TEST_P(Latent, scales_of_any_size) {
  LatentCase c{.rows = FA3_MLA_ROWS_GROUP128, .heads = 20, .keys = {200, 70}};
  for (const double scale : {1e-38, 1e-30, 1e-10, 1e10, 1e30}) {
    c.scale = scale;
    EXPECT_EQ(run(c), "") << describe(c);
  }
  c.scale = 1, c.zero_scales = true;
  EXPECT_EQ(run(c), "") << describe(c);
  // Weights are alike, and the largest values count.
  c.zero_scales = false, c.spread = 1e-9f, c.scale_octaves = 24;
  EXPECT_EQ(run(c), "") << describe(c);
  c.scale = 1e-30;
  EXPECT_EQ(run(c), "") << describe(c);
}

TEST_P(Latent, any_number_of_splits) {
  for (const int splits : {1, 2, 7, 64}) {
    for (const bool invariant : {false, true}) {
      expect_right({.tokens = 2,
                    .heads = 20,
                    .keys = {300, 0, 65},
                    .causal = true,
                    .num_splits = splits,
                    .batch_invariant = invariant});
    }
  }
}

TEST_P(Latent, more_sequences_than_a_stream_counts) {
  LatentCase c{.heads = 1, .page_size = 16, .keys = {}};
  for (int32_t b = 0; b < 1100; ++b) c.keys.push_back(b * 37 % 40);
  expect_right(c);
}

// Through fa3_forward(), which knows rows of 16 bits in several heads.
class LatentHeads : public LatentCalls<LatentCall, LatentCase, fa3_mla_forward_supported,
                                       fa3_mla_forward_workspace_size, fa3_mla_forward> {};
FA3_FOR_EVERY_ENGINE(LatentHeads);

TEST_P(LatentHeads, several) {
  for (const int64_t heads : {2, 3, 8}) {
    Case c = dense_case(2, 3, 70, 2 * heads, heads, 576, 512, FA3_BFLOAT16);
    c.causal = true;
    EXPECT_TRUE(agrees(c));
  }
}

}  // namespace
}  // namespace fa3::test
