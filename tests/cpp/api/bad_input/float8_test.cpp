// SPDX-License-Identifier: Apache-2.0
//
// Forward calls with float8 operands: types, scales and means that do not fit.
#include <fa3/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "api/calls.h"

namespace fa3::test::float8_bad_input {
namespace {

using P = fa3_forward_params;
using Bad = BadInput<P>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A tensor with the same number everywhere: its strides are 0.
fa3_tensor filled(std::initializer_list<int64_t> shape, const float* value) {
  fa3_tensor tensor{.data = const_cast<float*>(value), .dtype = FA3_FLOAT32};
  tensor.device_type = FA3_CPU;
  for (int64_t extent : shape) tensor.shape[tensor.rank++] = extent;
  tensor.stride[tensor.rank - 1] = 1;
  return tensor;
}

// Extents of 1 in every last dimension that has stride 1, or a mean's 16 numbers.
constexpr float kOnes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
fa3_tensor ones(std::initializer_list<int64_t> shape) {
  return filled(shape, kOnes);
}

void use_float8(P* p) {
  p->q.dtype = p->k.dtype = p->v.dtype = FA3_FLOAT8_E4M3;
}

const std::vector<Bad>& types() {
  static const std::vector<Bad> bad = {
      {"q_alone", [](P* p) { p->q.dtype = FA3_FLOAT8_E4M3; }, "k:", {"dtype of q"}},
      {"k_alone", [](P* p) { p->k.dtype = FA3_FLOAT8_E4M3; }, "v:", {"dtype of k"}},
      {"v_alone", [](P* p) { p->v.dtype = FA3_FLOAT8_E4M3; }, "v:", {"dtype of q"}},
      {"e5m2_q", [](P* p) { p->q.dtype = FA3_FLOAT8_E5M2; }, "q:", {"got float8_e5m2", "caches"}},
      {"e5m2_all",
       [](P* p) { p->q.dtype = p->k.dtype = p->v.dtype = FA3_FLOAT8_E5M2; },
       "q:",
       {"for k and v under wider queries"}},
      {"e5m2_under_e4m3",
       [](P* p) {
         use_float8(p);
         p->k.dtype = p->v.dtype = FA3_FLOAT8_E5M2;
       },
       "k:",
       {"dtype of q, float8_e4m3, got float8_e5m2"}},
      {"e5m2_k_alone", [](P* p) { p->k.dtype = FA3_FLOAT8_E5M2; }, "v:", {"dtype of k"}},
      {"scale_of_float16_q",
       [](P* p) { p->q_descale = ones({1}); },
       "q_descale:",
       {"only with q in float8", "got float16", "leave it out"}},
      {"scale_of_float16_v", [](P* p) { p->v_descale = ones({1}); }, "v_descale:", {"only"}},
      {"mean_of_float16_k",
       [](P* p) {
         p->k_mean = ones({2, 2, 8});
       },
       "k_mean:",
       {"only with k"}},
  };
  return bad;
}

const std::vector<Bad>& scales() {
  static const float zero = 0, negative = -1, nan = std::numeric_limits<float>::quiet_NaN(),
                     infinite = kInfinity;
  static const std::vector<Bad> bad = {
      {"o", [](P* p) { p->o.dtype = FA3_FLOAT8_E4M3; }, "o:", {"bfloat16 or float16 or float32"}},
      {"rank",
       [](P* p) {
         p->q_descale = ones({2, 4, 1, 1});
       },
       "q_descale:",
       {"got rank 4"}},
      {"vector", [](P* p) { p->q_descale = ones({4}); }, "q_descale:", {"one scale", "got 4"}},
      {"batch",
       [](P* p) {
         p->k_descale = ones({3, 2});
       },
       "k_descale:",
       {"batch = 2", "got 3"}},
      {"heads",
       [](P* p) {
         p->q_descale = ones({2, 3});
       },
       "q_descale:",
       {"heads = 4", "got 3"}},
      {"kv_heads",
       [](P* p) {
         p->v_descale = ones({2, 4});
       },
       "v_descale:",
       {"heads = 2", "got 4"}},
      {"blocks",
       [](P* p) {
         p->k_descale = ones({2, 2, 0});
       },
       "k_descale:",
       {"at least 1 blocks of 64 rows for 10 rows", "got 0"}},
      {"dtype",
       [](P* p) {
         p->k_descale = ones({1});
         p->k_descale.dtype = FA3_FLOAT16;
       },
       "k_descale:",
       {"float32", "got float16"}},
      {"device",
       [](P* p) {
         p->k_descale = ones({1});
         p->k_descale.device_type = FA3_CUDA;
       },
       "k_descale:",
       {"cpu", "got cuda"}},
      {"null", [](P* p) { p->k_descale = filled({1}, nullptr); }, "k_descale:", {"null pointer"}},
      {"mean_dim",
       [](P* p) {
         p->v_mean = ones({2, 2, 8});
       },
       "v_mean:",
       {"head dim = 16", "got 8"}},
      {"mean_rank",
       [](P* p) {
         p->k_mean = ones({2, 2});
       },
       "k_mean:",
       {"rank 3", "got rank 2"}},
      {"overlap",
       [](P* p) {
         p->v_mean = ones({2, 2, 16});
         p->v_mean.data = p->lse.data;
       },
       "lse:",
       {"overlaps v_mean"}},
      {"zero_value", [](P* p) { p->k_descale = filled({1}, &zero); }, "k_descale:", {"got 0"}},
      {"negative_value",
       [](P* p) {
         p->q_descale = filled({2, 4}, &negative);
       },
       "q_descale:",
       {"finite scales > 0", "got -1 for batch 0, head 0"}},
      {"nan_value",
       [](P* p) {
         p->v_descale = filled({2, 2, 1}, &nan);
       },
       "v_descale:",
       {"got nan"}},
      {"infinite_value",
       [](P* p) { p->v_descale = filled({1}, &infinite); },
       "v_descale:",
       {"got inf"}},
  };
  return bad;
}

// v's keys side by side, 16 places a channel; what the call before did not say is left out.
void transpose(P* p) {
  p->v_transposed = 1;
  const int64_t heads = p->v.shape[2], dim = p->v.shape[3];
  const int64_t strides[] = {heads * dim * 16, 1, dim * 16, 16};
  std::copy_n(strides, 4, p->v.stride);
  static std::vector<std::byte> memory(size_t{1} << 16);
  p->v.data = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
}

const std::vector<Bad>& transposed_values() {
  static const std::vector<Bad> bad = {
      {"flag", [](P* p) { p->v_transposed = 2; }, "v_transposed:", {"0 or 1", "got 2"}},
      {"of_float16",
       [](P* p) { p->q.dtype = p->k.dtype = p->v.dtype = FA3_FLOAT16; },
       "v_transposed:",
       {"not all float8_e4m3"}},
      {"rows", [](P* p) { p->v.stride[1] = 16; }, "v:", {"stride 1 in dimension 1", "got 16"}},
      {"odd_channels", [](P* p) { p->v.stride[3] = 24; }, "v:", {"multiples of 16", "24"}},
      {"odd_heads", [](P* p) { p->v.stride[2] = 200; }, "v:", {"multiples of 16", "200"}},
      {"address",
       [](P* p) { p->v.data = static_cast<std::byte*>(p->v.data) + 4; },
       "v:",
       {"an address"}},
      {"lengths",
       [](P* p) {
         static const int32_t lengths[] = {1, 1};
         p->options.seqused_k = contiguous(lengths, FA3_INT32, {2});
       },
       "seqused_k:",
       {"expected none with v_transposed"}},
  };
  return bad;
}

class Float8BadInput : public testing::TestWithParam<Bad> {
 protected:
  // Questions judge everything but data.
  void expect_refusal(ForwardCall* call) const {
    const Bad& bad = GetParam();
    bad.change(&call->params);
    EXPECT_EQ(call->run(), bad.status) << fa3_last_error();
    EXPECT_TRUE(last_error_says(bad.argument, bad.words));
    EXPECT_TRUE(call->outputs_untouched());
    const std::string name = bad.name;
    const bool of_data = name == "null" || name == "overlap" || name.ends_with("_value");
    EXPECT_EQ(fa3_forward_supported(&call->params), of_data ? FA3_OK : bad.status);
  }
};
class Float8Types : public Float8BadInput {};
class Float8Scales : public Float8BadInput {};
class Float8Transposed : public Float8BadInput {};
INSTANTIATE_TEST_SUITE_P(all, Float8Types, testing::ValuesIn(types()), name_of_bad_input<P>);
INSTANTIATE_TEST_SUITE_P(all, Float8Scales, testing::ValuesIn(scales()), name_of_bad_input<P>);
INSTANTIATE_TEST_SUITE_P(all, Float8Transposed, testing::ValuesIn(transposed_values()),
                         name_of_bad_input<P>);

TEST_P(Float8Types, are_explained_and_change_nothing) {
  ForwardCall call;
  expect_refusal(&call);
}

TEST_P(Float8Scales, are_explained_and_change_nothing) {
  ForwardCall call;
  use_float8(&call.params);
  expect_refusal(&call);
}

TEST_P(Float8Transposed, are_explained_and_change_nothing) {
  ForwardCall call;
  use_float8(&call.params);
  transpose(&call.params);
  expect_refusal(&call);
}

TEST(Float8Call, is_valid_with_transposed_values_where_an_engine_reads_them) {
  ForwardCall call;
  use_float8(&call.params);
  transpose(&call.params);
  call.params.options.engine = FA3_ENGINE_REFERENCE;
  EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
  call.params.options.engine = FA3_ENGINE_CPU;
  EXPECT_EQ(call.run(), FA3_UNSUPPORTED);
  EXPECT_NE(std::string(fa3_last_error()).find("v_transposed"), std::string::npos);
}

TEST(Float8Call, is_valid_with_scales_of_every_shape_and_without) {
  for (const fa3_tensor& scale : {fa3_tensor{}, ones({1}), ones({2, 2}), ones({2, 2, 1})}) {
    for (bool queries_too : {false, true}) {
      ForwardCall call;
      use_float8(&call.params);
      if (!queries_too) call.params.q.dtype = FA3_FLOAT16;
      if (queries_too) call.params.q_descale = scale;  // of the key/value heads
      call.params.k_descale = call.params.v_descale = scale;
      call.params.v_mean = ones({2, 2, 16});
      EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
    }
  }
}

}  // namespace
}  // namespace fa3::test::float8_bad_input
