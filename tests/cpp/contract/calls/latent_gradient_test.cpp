// SPDX-License-Identifier: Apache-2.0
//
// Gradients of selected rows of a latent cache (fa3_mla_backward()), beside double precision.
// Memory ends with the tensors, and rows that no valid index names are NaN: gradient_call.h.
#include <gtest/gtest.h>

#include "contract/calls/latent_fixture.h"
#include "support/latent/gradient_call.h"

namespace fa3::test {
namespace {

class LatentGradients : public LatentCalls<GradientCall, GradientCase, fa3_mla_backward_supported,
                                           fa3_mla_backward_workspace_size, fa3_mla_backward> {
 protected:
  // In both types of 16 bits.
  void expect_right(GradientCase c) {
    for (const fa3_dtype dtype : {FA3_BFLOAT16, FA3_FLOAT16}) {
      c.dtype = dtype;
      EXPECT_EQ(run(c), "") << describe(c);
      ++c.seed;
    }
  }
};
FA3_FOR_EVERY_ENGINE(LatentGradients);

TEST_P(LatentGradients, any_number_of_heads) {
  for (const int64_t heads : {1, 3, 63, 64, 65, 128}) {
    expect_right({.dim = heads % 2 ? 576 : 512, .tokens = 1, .heads = heads, .top = 70});
  }
}

// Indices below 0 and beyond the cache; blocks without rows between others; counts of any size.
TEST_P(LatentGradients, any_number_of_indices) {
  for (const int64_t top : {0, 1, 31, 32, 33, 64, 65, 129, 700}) {
    expect_right({.tokens = 3, .heads = 5, .top = top, .has_count = top % 2 == 0});
  }
}

TEST_P(LatentGradients, pages_of_any_size_and_batches) {
  for (const int64_t page_size : {1, 3, 53, 576}) {
    expect_right({.batch = 2, .tokens = 3, .heads = 4, .page_size = page_size, .has_count = true});
  }
}

// In all places of all queries, in a cache of one row, and in none.
TEST_P(LatentGradients, rows_are_named_often_or_not_at_all) {
  expect_right({.tokens = 9, .heads = 3, .top = 130, .one_row = true});
  expect_right({.tokens = 3, .heads = 3, .gap = 40, .top = 200});
  expect_right({.tokens = 5, .heads = 2, .page_size = 1, .rows = 1, .top = 66});
  expect_right({.tokens = 0, .heads = 2, .sink = true});
}

TEST_P(LatentGradients, sinks_and_gradients_of_the_lse) {
  for (const bool in_lse : {false, true}) {
    for (const bool has_d_lse : {false, true}) {
      expect_right({.tokens = 7,
                    .heads = 40,
                    .has_count = true,
                    .sink = true,
                    .lse_with_sink = in_lse,
                    .has_d_lse = has_d_lse});
    }
  }
}

TEST_P(LatentGradients, deterministic_or_not) {
  expect_right({.batch = 2, .tokens = 7, .heads = 66, .deterministic = true});
  expect_right({.tokens = 9, .heads = 3, .one_row = true, .wide = true, .deterministic = true});
  expect_right({.tokens = 0, .heads = 2, .deterministic = true});
}

TEST_P(LatentGradients, outputs_and_scales_of_any_size) {
  for (const bool wide : {false, true}) {
    expect_right({.heads = 9, .wide = wide, .scale = 0.002f, .of_d_o = 1e-3f});
    expect_right({.heads = 9, .wide = wide, .scale = 0.5f, .spread = 4});
  }
}

}  // namespace
}  // namespace fa3::test
