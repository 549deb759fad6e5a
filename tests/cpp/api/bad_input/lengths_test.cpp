// SPDX-License-Identifier: Apache-2.0
//
// Wrong length arrays: their form, and, in host memory, every value.
#include <gtest/gtest.h>

#include <limits>

#include "api/calls.h"

namespace fa3::test::lengths_bad_input {
namespace {

struct BadLengths {
  const char* name;
  std::function<void(ForwardCall*)> change;
  const char* argument;
  std::vector<std::string> words;
};

void PrintTo(const BadLengths& bad, std::ostream* out) {
  *out << bad.name;
}

std::string name_of_bad_lengths(const testing::TestParamInfo<BadLengths>& info) {
  return info.param.name;
}

constexpr int32_t kBig = std::numeric_limits<int32_t>::max();

// The call is packed: queries {2, 4} rows, keys {7, 3} rows.
const std::vector<BadLengths>& values() {
  using C = ForwardCall;
  static const std::vector<BadLengths> bad = {
      {"q_start", [](C* c) { c->inputs.cu_q[0] = 1; }, "cu_seqlens_q:", {"start with 0", "got 1"}},
      {"k_start", [](C* c) { c->inputs.cu_k[0] = -1; }, "cu_seqlens_k:", {"start with 0", "-1"}},
      {"q_decreases",
       [](C* c) { c->inputs.cu_q[1] = 7; },
       "cu_seqlens_q:",
       {"never decrease", "7"}},
      {"k_negative", [](C* c) { c->inputs.cu_k[1] = -2; }, "cu_seqlens_k:", {"decrease", "-2"}},
      {"q_past_end", [](C* c) { c->inputs.cu_q[2] = 7; }, "cu_seqlens_q:", {"6 rows", "got 7"}},
      {"k_past_end", [](C* c) { c->inputs.cu_k[2] = kBig; }, "cu_seqlens_k:", {"10 rows"}},
  };
  return bad;
}

const std::vector<BadLengths>& forms() {
  using C = ForwardCall;
  static const std::vector<BadLengths> bad = {
      {"q_rank_2",
       [](C* c) { c->params.options.cu_seqlens_q.rank = 2; },
       "cu_seqlens_q:",
       {"rank 1", "got rank 2"}},
      {"q_rank_0",
       [](C* c) { c->params.options.cu_seqlens_q.rank = 0; },
       "cu_seqlens_q:",
       {"rank 1", "got rank 0"}},
      {"q_too_long",
       [](C* c) {
         c->inputs.cu_q.push_back(6);
         c->params.options.cu_seqlens_q.data = c->inputs.cu_q.data();
         c->params.options.cu_seqlens_q.shape[0] = 4;
       },
       "cu_seqlens_k:",
       {"entries = 4", "got 3"}},
      {"k_too_short",
       [](C* c) { c->params.options.cu_seqlens_k.shape[0] = 2; },
       "cu_seqlens_k:",
       {"entries = 3", "got 2"}},
      {"q_without_entries",
       [](C* c) { c->params.options.cu_seqlens_q.shape[0] = 0; },
       "cu_seqlens_q:",
       {"entries = 1", "got 0"}},
      {"q_count_int64_min",
       [](C* c) { c->params.options.cu_seqlens_q.shape[0] = std::numeric_limits<int64_t>::min(); },
       "cu_seqlens_q:",
       {"[0, 2^40]"}},
      {"k_float",
       [](C* c) { c->params.options.cu_seqlens_k.dtype = FA3_FLOAT32; },
       "cu_seqlens_k:",
       {"int32", "got float32"}},
      {"k_stride",
       [](C* c) { c->params.options.cu_seqlens_k.stride[0] = 2; },
       "cu_seqlens_k:",
       {"stride 1", "got 2"}},
      {"k_null",
       [](C* c) { c->params.options.cu_seqlens_k.data = nullptr; },
       "cu_seqlens_k:",
       {"null pointer"}},
      {"k_on_cuda",
       [](C* c) { c->params.options.cu_seqlens_k.device_type = FA3_CUDA; },
       "cu_seqlens_k:",
       {"cpu", "got cuda"}},
      {"q_misaligned",
       [](C* c) {
         auto& data = c->params.options.cu_seqlens_q.data;
         data = static_cast<char*>(data) + 2;
       },
       "cu_seqlens_q:",
       {"aligned", "4 bytes"}},
      {"q_not_packed",
       [](C* c) { c->params.q = c->inputs.q.dense(); },
       "q:",
       {"rank 3", "cu_seqlens", "got rank 4"}},
      {"o_not_packed", [](C* c) { c->params.o = c->o.dense(); }, "o:", {"rank 3", "got rank 4"}},
      {"lse_not_packed",
       [](C* c) { c->params.lse = c->lse.dense_lse(); },
       "lse:",
       {"rank 2", "got rank 3"}},
      {"o_total", [](C* c) { c->params.o.shape[0] = 5; }, "o:", {"total rows = 6", "got 5"}},
  };
  return bad;
}

class ForwardBadLengths : public testing::TestWithParam<BadLengths> {};
INSTANTIATE_TEST_SUITE_P(value, ForwardBadLengths, testing::ValuesIn(values()),
                         name_of_bad_lengths);
INSTANTIATE_TEST_SUITE_P(form, ForwardBadLengths, testing::ValuesIn(forms()), name_of_bad_lengths);

TEST_P(ForwardBadLengths, are_explained_and_change_nothing) {
  ForwardCall call(true);
  GetParam().change(&call);
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT) << fa3_last_error();
  EXPECT_TRUE(last_error_says(GetParam().argument, GetParam().words));
  EXPECT_TRUE(call.outputs_untouched());
}

fa3_tensor lengths(const int32_t* data, int64_t count) {
  return {const_cast<int32_t*>(data), FA3_INT32, FA3_CPU, 0, 1, {count}, {1}};
}

TEST(UsedLengths, must_lie_between_zero_and_what_the_sequence_owns) {
  for (bool packed : {false, true}) {
    for (const auto& [first, second] : {std::pair{-1, 3}, {2, 5000}, {2, packed ? 5 : 7}}) {
      const int32_t used[] = {first, second};
      ForwardCall call(packed);
      call.params.options.seqused_q = lengths(used, 2);
      EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT) << first << ", " << second;
      EXPECT_TRUE(last_error_says("seqused_q:", {"[0, ", "got "}));
      EXPECT_TRUE(call.outputs_untouched());
    }
  }
}

TEST(UsedLengths, must_have_one_entry_per_sequence) {
  const int32_t used[] = {1, 1, 1};
  ForwardCall call;
  call.params.options.seqused_k = lengths(used, 3);
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("seqused_k:", {"entries = 2", "got 3"}));
  EXPECT_TRUE(call.outputs_untouched());
}

// Kernels on a GPU read lengths there.
TEST(HostLengths, beside_tensors_on_a_gpu_are_refused_with_where_they_must_live) {
  ForwardCall call(true);
  for (fa3_tensor* tensor : {&call.params.q, &call.params.k, &call.params.v, &call.params.o,
                             &call.params.lse, &call.params.sink}) {
    tensor->device_type = FA3_CUDA;
  }
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("cu_seqlens_q:", {"the device of q, cuda:0", "got cpu:0"}));
  EXPECT_TRUE(call.outputs_untouched());
}

TEST(MixedPacking, takes_the_batch_from_the_dense_side) {
  ForwardCall call(true);
  call.params.k.rank = 4;  // keys dense with batch 3, queries packed with two sequences
  const Tensor k({3, 5, 2, 8}, FA3_FLOAT16), v({3, 5, 2, 16}, FA3_FLOAT16);
  call.params.k = k.dense();
  call.params.v = v.dense();
  call.params.options.cu_seqlens_k = {};
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("cu_seqlens_q:", {"entries = 4", "got 3"}));
}

}  // namespace
}  // namespace fa3::test::lengths_bad_input
