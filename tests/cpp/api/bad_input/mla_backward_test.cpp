// SPDX-License-Identifier: Apache-2.0
#include <fa3/mla.h>
#include <fa3/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "api/calls.h"

namespace fa3::test::mla_backward_bad_input {
namespace {

using P = fa3_mla_backward_params;
using Bad = BadInput<P>;

constexpr float kUntouched = -77.0f;

// 2 queries of 3 heads, 4 rows in 2 pages, with a sink.
struct MlaBackwardCall {
  std::vector<float> q, rows, o, d_o, lse = std::vector<float>(6, 7.0f), sink = {0, 1, 2};
  std::vector<float> dq = std::vector<float>(6 * 576, kUntouched);
  std::vector<float> d_cache = std::vector<float>(4 * 576, kUntouched);
  std::vector<float> dsink = std::vector<float>(3, kUntouched);
  std::vector<int32_t> indices = {0, 3, 3, 1, -1, 2};
  std::vector<std::byte> workspace = std::vector<std::byte>(16 << 20);
  P params;

  MlaBackwardCall() {
    for (auto [numbers, count] : {std::pair{&q, 6 * 576}, {&rows, 4 * 576}, {&o, 6 * 512}}) {
      for (int i = 0; i < count; ++i) numbers->push_back(std::sin(0.37f * float(i)));
    }
    d_o = o;
    fa3_mla_backward_params_init(&params);
    params.q = contiguous(q.data(), FA3_FLOAT32, {2, 3, 576});
    params.cache = contiguous(rows.data(), FA3_FLOAT32, {2, 2, 1, 576});
    params.indices = contiguous(indices.data(), FA3_INT32, {2, 3});
    params.sink = contiguous(sink.data(), FA3_FLOAT32, {3});
    params.o = contiguous(o.data(), FA3_FLOAT32, {2, 3, 512});
    params.d_o = contiguous(d_o.data(), FA3_FLOAT32, {2, 3, 512});
    params.lse = contiguous(lse.data(), FA3_FLOAT32, {3, 2});
    params.dq = contiguous(dq.data(), FA3_FLOAT32, {2, 3, 576});
    params.d_cache = contiguous(d_cache.data(), FA3_FLOAT32, {2, 2, 1, 576});
    params.dsink = contiguous(dsink.data(), FA3_FLOAT32, {3});
    params.num_threads = 2;
  }
  fa3_status run() {
    return fa3_mla_backward(&params, workspace.data(), workspace.size(), nullptr);
  }
  bool untouched() const {
    for (const auto* numbers : {&dq, &d_cache, &dsink}) {
      for (const float x : *numbers) {
        if (x != kUntouched) return false;
      }
    }
    return true;
  }
};

const std::vector<Bad>& bad_inputs() {
  static const std::vector<Bad> bad = {
      {"no_indices", [](P* p) { p->indices = {}; }, "indices:", {"got none"}},
      {"no_lse", [](P* p) { p->lse = {}; }, "lse:", {"fa3_mla_forward()", "got none"}},
      {"no_d_o", [](P* p) { p->d_o = {}; }, "d_o:", {"got rank 0"}},
      {"d_o_dim", [](P* p) { p->d_o.shape[2] = 576; }, "d_o:", {"head dim = 512", "got 576"}},
      {"d_o_dtype", [](P* p) { p->d_o.dtype = FA3_INT32; }, "d_o:", {"float32", "got int32"}},
      {"d_lse_heads",
       [](P* p) { (p->d_lse = p->lse).shape[0] = 2; },
       "d_lse:",
       {"query heads = 3", "got 2"}},
      {"dq_dim", [](P* p) { p->dq.shape[2] = 512; }, "dq:", {"head dim = 576", "got 512"}},
      {"dq_dtype", [](P* p) { p->dq.dtype = FA3_FLOAT16; }, "dq:", {"got float16"}},
      {"dq_null", [](P* p) { p->dq.data = nullptr; }, "dq:", {"null pointer"}},
      {"d_cache_rank", [](P* p) { p->d_cache.rank = 3; }, "d_cache:", {"rank 4", "got rank 3"}},
      {"d_cache_rows", [](P* p) { p->d_cache.shape[1] = 3; }, "d_cache:", {"= 2", "got 3"}},
      {"d_cache_dtype", [](P* p) { p->d_cache.dtype = FA3_BFLOAT16; }, "d_cache:", {"bfloat16"}},
      {"d_cache_stride", [](P* p) { p->d_cache.stride[3] = 2; }, "d_cache:", {"stride 1"}},
      {"d_cache_null", [](P* p) { p->d_cache.data = nullptr; }, "d_cache:", {"null pointer"}},
      {"d_cache_is_cache", [](P* p) { p->d_cache.data = p->cache.data; }, "d_cache:", {"cache"}},
      {"d_cache_expanded", [](P* p) { p->d_cache.stride[0] = 0; }, "d_cache:", {"overlap"}},
      {"dsink_alone", [](P* p) { p->sink = {}; }, "dsink:", {"without sink"}},
      {"dsink_heads", [](P* p) { p->dsink.shape[0] = 2; }, "dsink:", {"= 3", "got 2"}},
      {"cache_dim", [](P* p) { p->cache.shape[3] = 512; }, "q:", {"head dim 512", "got 576"}},
      {"cache_of_bytes", [](P* p) { p->cache.dtype = FA3_FLOAT8_E4M3; }, "cache:", {"float8"}},
      {"deterministic", [](P* p) { p->deterministic = 2; }, "deterministic:", {"got 2"}},
      {"engine",
       [](P* p) { p->engine = FA3_ENGINE_REFERENCE; },
       "no engine",
       {"no gradients of latent rows"},
       FA3_UNSUPPORTED},
  };
  return bad;
}

class MlaBackwardBadInput : public testing::TestWithParam<Bad> {};
INSTANTIATE_TEST_SUITE_P(all, MlaBackwardBadInput, testing::ValuesIn(bad_inputs()),
                         name_of_bad_input<P>);

TEST_P(MlaBackwardBadInput, is_explained_and_changes_nothing) {
  MlaBackwardCall call;
  GetParam().change(&call.params);
  EXPECT_EQ(call.run(), GetParam().status) << fa3_last_error();
  EXPECT_TRUE(last_error_says(GetParam().argument, GetParam().words));
  EXPECT_TRUE(call.untouched());
}

TEST(MlaBackwardCallItself, has_the_same_gradients_in_pages_of_any_size_and_on_any_threads) {
  MlaBackwardCall call, one_page;
  EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
  one_page.params.cache = contiguous(one_page.rows.data(), FA3_FLOAT32, {1, 4, 576});
  one_page.params.d_cache = contiguous(one_page.d_cache.data(), FA3_FLOAT32, {1, 4, 576});
  one_page.params.num_threads = 5;
  EXPECT_EQ(one_page.run(), FA3_OK) << fa3_last_error();
  EXPECT_FALSE(call.untouched());
  EXPECT_EQ(call.dq, one_page.dq);
  EXPECT_EQ(call.d_cache, one_page.d_cache);
  EXPECT_EQ(call.dsink, one_page.dsink);
}

}  // namespace
}  // namespace fa3::test::mla_backward_bad_input
