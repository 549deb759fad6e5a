// SPDX-License-Identifier: Apache-2.0
//
// Wrong caches: forms, and, in host memory, every number that the call would follow.
#include <gtest/gtest.h>

#include <limits>

#include "api/calls.h"
#include "support/cases/cache.h"

namespace fa3::test::cache_bad_input {
namespace {

// Batch 2, 10 keys behind up to 7 rows of padding, in pages of 4 rows; a table of 4 entries with 6
// numbers each.
struct CacheCall {
  ForwardCall plain;
  Cached cached;
  fa3_forward_params params;

  CacheCall()
      : cached(in_cache(plain.c, plain.inputs,
                        {.page_size = 4, .indexed = true, .padded_left = true})),
        params(forward_params(FA3_ENGINE_AUTO, cached.c, cached.inputs, plain.o, plain.lse)) {}
  fa3_status run() {
    return fa3_forward(&params, plain.workspace.data(), ForwardCall::kWorkspaceBytes, nullptr);
  }
  // The first number of the table that sequence `b` uses.
  int32_t& first_page(size_t b) {
    const Inputs& in = cached.inputs;
    return cached.inputs
        .page_table[static_cast<size_t>(in.batch_index[b] * in.max_pages + in.left_padding[b] / 4)];
  }
};

struct BadCache {
  const char* name;
  std::function<void(CacheCall*)> change;
  const char* argument;
  std::vector<std::string> words;
};
void PrintTo(const BadCache& bad, std::ostream* out) {
  *out << bad.name;
}

constexpr int32_t kBig = std::numeric_limits<int32_t>::max();

const std::vector<BadCache>& bad_caches() {
  using C = CacheCall;
  static const std::vector<BadCache> bad = {
      {"negative_page",
       [](C* c) { c->first_page(1) = -1; },
       "page_table:",
       {"page in [0, ", "entry (", "sequence 1", "got -1"}},
      {"page_past_the_cache",
       [](C* c) { c->first_page(0) = static_cast<int32_t>(c->params.k.shape[0]); },
       "page_table:",
       {"sequence 0"}},
      {"huge_page", [](C* c) { c->first_page(0) = kBig; }, "page_table:", {"got 2147483647"}},
      {"negative_entry",
       [](C* c) { c->cached.inputs.batch_index[1] = -1; },
       "batch_index:",
       {"[0, 4)", "page_table", "sequence 1", "got -1"}},
      {"entry_past_the_table",
       [](C* c) { c->cached.inputs.batch_index[0] = 4; },
       "batch_index:",
       {"got 4"}},
      {"negative_padding",
       [](C* c) { c->cached.inputs.left_padding[0] = -2; },
       "left_padding:",
       {"sequence 0", "got -2"}},
      {"padding_past_the_keys",
       [](C* c) { c->cached.inputs.left_padding[1] = c->cached.c.k.used[1] + 1; },
       "left_padding:",
       {"sequence 1"}},
      {"used_past_the_table",
       [](C* c) { c->cached.c.k.used[0] = 25; },
       "seqused_k:",
       {"[0, 24]", "got 25"}},
      {"table_of_rank_1", [](C* c) { c->params.page_table.rank = 1; }, "page_table:", {"rank 2"}},
      {"table_of_floats",
       [](C* c) { c->params.page_table.dtype = FA3_FLOAT32; },
       "page_table:",
       {"int32"}},
      {"table_transposed",
       [](C* c) { c->params.page_table.stride[1] = 2; },
       "page_table:",
       {"stride 1 in the last dimension, got 2; make that dimension contiguous"}},
      {"table_too_short",
       [](C* c) {
         c->params.batch_index = {};
         c->params.page_table.shape[0] = 1;
       },
       "page_table:",
       {"batch = 2", "got 1"}},
      {"index_too_short",
       [](C* c) { c->params.batch_index.shape[0] = 1; },
       "batch_index:",
       {"entries = 2"}},
      {"padding_too_long",
       [](C* c) { c->params.left_padding.shape[0] = 3; },
       "left_padding:",
       {"entries = 2"}},
      {"pages_without_rows",
       [](C* c) { c->params.k.shape[1] = c->params.v.shape[1] = 0; },
       "k:",
       {"at least one row"}},
      {"rows_beyond_64_bits",
       [](C* c) {
         c->params.page_table.shape[1] = int64_t{1} << 40;
         c->params.k.shape[1] = c->params.v.shape[1] = int64_t{1} << 30;
       },
       "page_table:",
       {"overflow"}},
      {"values_with_other_pages", [](C* c) { --c->params.v.shape[0]; }, "v:", {"batch"}},
      {"splits_below_0", [](C* c) { c->params.num_splits = -1; }, "num_splits:", {"got -1"}},
      {"splits_above_256", [](C* c) { c->params.num_splits = 257; }, "num_splits:", {"256"}},
      {"padding_that_is_the_output",
       [](C* c) { c->params.left_padding.data = c->params.lse.data; },
       "",
       {}},
  };
  return bad;
}

class BadCaches : public testing::TestWithParam<BadCache> {};
INSTANTIATE_TEST_SUITE_P(cache, BadCaches, testing::ValuesIn(bad_caches()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(BadCaches, are_explained_and_change_nothing) {
  const BadCache& bad = GetParam();
  CacheCall call;
  ASSERT_EQ(call.run(), FA3_OK) << fa3_last_error();
  call.plain.o.poison();
  call.plain.lse.poison();
  bad.change(&call);
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT) << fa3_last_error();
  EXPECT_TRUE(last_error_says(bad.argument, bad.words));
  EXPECT_TRUE(call.plain.outputs_untouched());
}

TEST(BadCaches, and_packed_keys_exclude_each_other) {
  for (fa3_tensor fa3_forward_params::*field :
       {&fa3_forward_params::page_table, &fa3_forward_params::batch_index,
        &fa3_forward_params::left_padding}) {
    ForwardCall packed(true);
    CacheCall cache;
    packed.params.*field = cache.params.*field;
    EXPECT_EQ(packed.run(), FA3_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fa3_last_error()).find("cu_seqlens_k"), std::string::npos);
    EXPECT_TRUE(packed.outputs_untouched());

    cache.params.options.cu_seqlens_k = packed.params.options.cu_seqlens_k;  // over k in its pages
    EXPECT_EQ(cache.run(), FA3_INVALID_ARGUMENT);
    EXPECT_NE(std::string(fa3_last_error()).find("expected none, since cu_seqlens_k"),
              std::string::npos)
        << fa3_last_error();
  }
}

}  // namespace
}  // namespace fa3::test::cache_bad_input
