// SPDX-License-Identifier: Apache-2.0
//
// Every wrong forward call gets a status and one sentence (argument, expected, got), and changes
// nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "api/calls.h"

namespace fa3::test::forward_bad_input {
namespace {

using P = fa3_forward_params;
using Bad = BadInput<P>;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void move_by_one_byte(fa3_tensor* tensor) {
  tensor->data = static_cast<char*>(tensor->data) + 1;
}

const std::vector<Bad>& shapes() {
  static const std::vector<Bad> bad = {
      {"q_rank_3",
       [](P* p) { p->q.rank = 3; },
       "q:",
       {"expected rank 4", "cu_seqlens_q beside packed rows", "got rank 3"}},
      {"v_rank_3",
       [](P* p) { p->v.rank = 3; },
       "v:",
       {"expected rank 4", "cu_seqlens_k beside packed rows", "got rank 3"}},
      {"q_rank_5", [](P* p) { p->q.rank = 5; }, "q:", {"expected rank 4", "got rank 5"}},
      {"q_missing",
       [](P* p) { p->q = {}; },
       "q:",
       {"expected rank 4", "got rank 0, that is no tensor"}},
      {"q_rank_negative", [](P* p) { p->q.rank = -7; }, "q:", {"expected rank 4", "got rank -7"}},
      {"k_rank_huge", [](P* p) { p->k.rank = 1 << 30; }, "k:", {"expected rank 4"}},
      {"v_rank_huge", [](P* p) { p->v.rank = 1 << 30; }, "v:", {"expected rank 4"}},
      {"v_rank_0", [](P* p) { p->v.rank = 0; }, "v:", {"expected rank 4", "got rank 0"}},
      {"o_missing", [](P* p) { p->o = {}; }, "o:", {"expected rank 4", "got rank 0"}},
      {"lse_rank_4", [](P* p) { p->lse.rank = 4; }, "lse:", {"expected rank 3", "got rank 4"}},
      {"sink_rank_2", [](P* p) { p->sink.rank = 2; }, "sink:", {"expected rank 1", "got rank 2"}},
      {"k_batch", [](P* p) { p->k.shape[0] = 3; }, "k:", {"expected batch = 2", "got 3"}},
      {"v_batch", [](P* p) { p->v.shape[0] = 1; }, "v:", {"expected batch = 2", "got 1"}},
      {"v_rows", [](P* p) { p->v.shape[1] = 9; }, "v:", {"expected seq = 10", "got 9"}},
      {"v_heads", [](P* p) { p->v.shape[2] = 1; }, "v:", {"expected heads = 2", "got 1"}},
      {"k_dim", [](P* p) { p->k.shape[3] = 7; }, "k:", {"the head dim of q = 8", "got 7"}},
      {"o_rows", [](P* p) { p->o.shape[1] = 5; }, "o:", {"expected seq = 6", "got 5"}},
      {"o_dim", [](P* p) { p->o.shape[3] = 8; }, "o:", {"expected head dim = 16", "got 8"}},
      {"lse_heads", [](P* p) { p->lse.shape[1] = 2; }, "lse:", {"query heads = 4", "got 2"}},
      {"lse_rows", [](P* p) { p->lse.shape[2] = 7; }, "lse:", {"seq = 6", "got 7"}},
      {"partial_alone",
       [](P* p) { p->o_partial = p->o; },
       "o_partial, lse_partial:",
       {"both or none", "got only o_partial"}},
      {"partial_narrow",
       [](P* p) { p->o_partial = p->o, p->lse_partial = p->lse; },
       "o_partial:",
       {"expected float32", "got float16"}},
      {"sink_heads", [](P* p) { p->sink.shape[0] = 2; }, "sink:", {"query heads = 4", "got 2"}},
      {"gate_columns",
       [](P* p) { (p->gate = p->o).shape[3] = 2; },
       "gate:",
       {"a last dimension of 16", "or of 1", "got 2"}},
      {"gate_rows", [](P* p) { (p->gate = p->o).shape[1] = 5; }, "gate:", {"seq = 6", "got 5"}},
      {"gate_int32",
       [](P* p) { (p->gate = p->o).dtype = FA3_INT32; },
       "gate:",
       {"float32 or float16 or bfloat16", "int32"}},
      {"gate_beside_partial",
       [](P* p) {
         p->gate = p->o;
         (p->o_partial = p->o).dtype = FA3_FLOAT32;
         p->lse_partial = p->lse;
       },
       "gate:",
       {"none beside o_partial"},
       FA3_UNSUPPORTED},
      {"max_logit_rank",
       [](P* p) { (p->max_logit = p->lse).rank = 1; },
       "max_logit:",
       {"expected rank 2", "got rank 1"}},
      {"max_logit_heads",
       [](P* p) { (p->max_logit = p->lse).rank = 2, p->max_logit.shape[1] = 2; },
       "max_logit:",
       {"query heads = 4", "got 2"}},
      {"heads_not_a_multiple",
       [](P* p) { p->q.shape[2] = p->o.shape[2] = p->lse.shape[1] = p->sink.shape[0] = 3; },
       "q:",
       {"multiple of the 2", "got 3"}},
      {"no_query_heads",
       [](P* p) { p->q.shape[2] = p->o.shape[2] = p->lse.shape[1] = p->sink.shape[0] = 0; },
       "q:",
       {"at least one head", "got 0"}},
      {"no_key_heads",
       [](P* p) { p->k.shape[2] = p->v.shape[2] = 0; },
       "k:",
       {"at least one head", "got 0"}},
      {"dim_0", [](P* p) { p->q.shape[3] = p->k.shape[3] = 0; }, "q:", {"[1, 576]", "got 0"}},
      {"dim_577", [](P* p) { p->q.shape[3] = p->k.shape[3] = 577; }, "q:", {"[1, 576]", "got 577"}},
      {"dim_v_0", [](P* p) { p->v.shape[3] = p->o.shape[3] = 0; }, "v:", {"[1, 576]", "got 0"}},
      {"dim_v_577", [](P* p) { p->v.shape[3] = p->o.shape[3] = 577; }, "v:", {"[1, 576]", "577"}},
      {"negative_batch", [](P* p) { p->q.shape[0] = -1; }, "q:", {"[0, 2^40]", "(-1, 6, 4, 8)"}},
      {"negative_rows", [](P* p) { p->k.shape[1] = -5; }, "k:", {"[0, 2^40]", "-5"}},
      {"rows_int64_max", [](P* p) { p->q.shape[1] = kMax; }, "q:", {"[0, 2^40]"}},
      {"rows_int64_min", [](P* p) { p->q.shape[1] = kMin; }, "q:", {"[0, 2^40]"}},
      {"elements_overflow",
       [](P* p) { p->q.shape[0] = p->q.shape[1] = p->q.shape[2] = int64_t{1} << 40; },
       "q:",
       {"at most 2^60 elements"}},
      {"span_overflow",
       [](P* p) {
         p->q.shape[1] = int64_t{1} << 40;
         p->q.stride[1] = int64_t{1} << 59;
       },
       "q:",
       {"at most 2^60 elements"}},
      {"stride_int64_max", [](P* p) { p->q.stride[0] = kMax; }, "q:", {"[0, 2^60]"}},
      {"stride_int64_min", [](P* p) { p->o.stride[0] = kMin; }, "o:", {"[0, 2^60]"}},
      {"stride_negative", [](P* p) { p->v.stride[1] = -32; }, "v:", {"-32", "flipped"}},
      {"scores_overflow",
       [](P* p) {  // batch * heads * sq * sk = 2^(1 + 2 + 40 + 40)
         for (fa3_tensor* t : {&p->q, &p->o, &p->k, &p->v}) t->shape[1] = int64_t{1} << 40;
         p->lse.shape[2] = int64_t{1} << 40;
       },
       "q, k:",
       {"overflows 64 bits"}},
      {"q_last_stride", [](P* p) { p->q.stride[3] = 2; }, "q:", {"stride 1", "got 2"}},
      {"k_last_stride", [](P* p) { p->k.stride[3] = 16; }, "k:", {"stride 1", "got 16"}},
      {"v_last_stride", [](P* p) { p->v.stride[3] = 0; }, "v:", {"stride 1", "got 0"}},
      {"o_last_stride", [](P* p) { p->o.stride[3] = 2; }, "o:", {"stride 1", "got 2"}},
      {"sink_stride", [](P* p) { p->sink.stride[0] = 2; }, "sink:", {"stride 1", "got 2"}},
  };
  return bad;
}

const std::vector<Bad>& types() {
  static const std::vector<Bad> bad = {
      {"k_bf16", [](P* p) { p->k.dtype = FA3_BFLOAT16; }, "k:", {"float16", "got bfloat16"}},
      {"v_float32", [](P* p) { p->v.dtype = FA3_FLOAT32; }, "v:", {"float16", "got float32"}},
      {"o_bf16", [](P* p) { p->o.dtype = FA3_BFLOAT16; }, "o:", {"float16", "got bfloat16"}},
      {"q_int32",
       [](P* p) { p->q.dtype = p->k.dtype = p->v.dtype = FA3_INT32; },
       "q:",
       {"expected float32 or float16 or bfloat16", "got int32"}},
      {"q_dtype_unknown", [](P* p) { p->q.dtype = 77; }, "q:", {"fa3_dtype", "got 77"}},
      {"k_dtype_negative", [](P* p) { p->k.dtype = -1; }, "k:", {"fa3_dtype", "got -1"}},
      {"lse_float16", [](P* p) { p->lse.dtype = FA3_FLOAT16; }, "lse:", {"float32", "got float16"}},
      {"sink_float16", [](P* p) { p->sink.dtype = FA3_FLOAT16; }, "sink:", {"float32", "float16"}},
      {"q_device_unknown", [](P* p) { p->q.device_type = 9; }, "q:", {"device_type", "got 9"}},
      {"k_on_cuda", [](P* p) { p->k.device_type = FA3_CUDA; }, "k:", {"cpu", "got cuda"}},
      {"o_on_cuda", [](P* p) { p->o.device_type = FA3_CUDA; }, "o:", {"cpu", "got cuda"}},
      {"lse_on_cuda", [](P* p) { p->lse.device_type = FA3_CUDA; }, "lse:", {"cpu", "got cuda"}},
      {"q_misaligned", [](P* p) { move_by_one_byte(&p->q); }, "q:", {"aligned", "2 bytes"}},
      {"o_misaligned", [](P* p) { move_by_one_byte(&p->o); }, "o:", {"aligned", "2 bytes"}},
      {"lse_misaligned", [](P* p) { move_by_one_byte(&p->lse); }, "lse:", {"aligned", "4 bytes"}},
      {"sink_misaligned", [](P* p) { move_by_one_byte(&p->sink); }, "sink:", {"aligned"}},
      {"q_null", [](P* p) { p->q.data = nullptr; }, "q:", {"got a null pointer", "(2, 6, 4, 8)"}},
      {"k_null", [](P* p) { p->k.data = nullptr; }, "k:", {"got a null pointer"}},
      {"v_null", [](P* p) { p->v.data = nullptr; }, "v:", {"got a null pointer"}},
      {"o_null", [](P* p) { p->o.data = nullptr; }, "o:", {"got a null pointer"}},
      {"lse_null_with_a_shape", [](P* p) { p->lse.data = nullptr; }, "lse:", {"null pointer"}},
      {"sink_null_with_a_shape", [](P* p) { p->sink.data = nullptr; }, "sink:", {"null pointer"}},
  };
  return bad;
}

// A block mask that is right.
fa3_tensor* set_mask(P* p) {
  static int32_t entry;
  entry = -1;
  p->options.block_mask = contiguous(&entry, FA3_INT32, {1, 1, 1, 1});
  return &p->options.block_mask;
}
fa3_tensor bits_at(int bytes) {
  alignas(16) static int32_t words[2 * FA3_MASK_BLOCK * 4];
  return contiguous(words + bytes / 4, FA3_INT32, {1, FA3_MASK_BLOCK, FA3_MASK_BLOCK / 32});
}

const std::vector<Bad>& options() {
  static const std::vector<Bad> bad = {
      {"scale_0", [](P* p) { p->options.scale = 0; }, "scale:", {"> 0", "got 0"}},
      {"scale_negative", [](P* p) { p->options.scale = -0.5f; }, "scale:", {"> 0", "got -0.5"}},
      {"scale_nan", [](P* p) { p->options.scale = kNaN; }, "scale:", {"finite", "nan"}},
      {"scale_inf", [](P* p) { p->options.scale = HUGE_VALF; }, "scale:", {"finite", "inf"}},
      {"softcap_negative", [](P* p) { p->options.softcap = -1; }, "softcap:", {"got -1"}},
      {"softcap_nan", [](P* p) { p->options.softcap = kNaN; }, "softcap:", {"finite", "nan"}},
      {"softcap_inf", [](P* p) { p->options.softcap = HUGE_VALF; }, "softcap:", {"finite", "inf"}},
      {"left_below", [](P* p) { p->options.window_left = -2; }, "window_left:", {"-1", "got -2"}},
      {"chunk_below",
       [](P* p) { p->options.attention_chunk = -1; },
       "attention_chunk:",
       {"0 (off)", "got -1"}},
      {"batch_invariant",
       [](P* p) { p->options.batch_invariant = 2; },
       "batch_invariant:",
       {"0 or 1", "got 2"}},
      {"right_below", [](P* p) { p->options.window_right = kMin; }, "window_right:", {"-1", "got"}},
      {"shift_far",
       [](P* p) { p->options.window_shift = -(1 << 30); },
       "window_shift:",
       {"below 2^30", "got -1073741824"}},
      {"margin_negative", [](P* p) { p->options.sm_margin = -1; }, "sm_margin:", {"got -1"}},
      {"margin_5000", [](P* p) { p->options.sm_margin = 5000; }, "sm_margin:", {"got 5000"}},
      {"dropout_nan", [](P* p) { p->options.dropout_p = kNaN; }, "dropout_p:", {"0 to 1", "nan"}},
      {"dropout_2", [](P* p) { p->options.dropout_p = 2; }, "dropout_p:", {"0 to 1", "got 2"}},
      {"dropout_below", [](P* p) { p->options.dropout_p = -0.5f; }, "dropout_p:", {"got -0.5"}},
      {"causal_2", [](P* p) { p->options.causal = 2; }, "causal:", {"0 or 1", "got 2"}},
      {"causal_negative", [](P* p) { p->options.causal = -1; }, "causal:", {"0 or 1", "got -1"}},
      {"deterministic_2", [](P* p) { p->options.deterministic = 2; }, "deterministic:", {"got 2"}},
      {"threads_negative", [](P* p) { p->options.num_threads = -1; }, "num_threads:", {"got -1"}},
      {"threads_5000", [](P* p) { p->options.num_threads = 5000; }, "num_threads:", {"got 5000"}},
      {"engine_unknown", [](P* p) { p->options.engine = 99; }, "engine:", {"got 99"}},
      {"engine_negative", [](P* p) { p->options.engine = -1; }, "engine:", {"got -1"}},
      {"max_q_negative", [](P* p) { p->options.max_seqlen_q = -3; }, "max_seqlen_q:", {"got -3"}},
      {"mask_of_bool",
       [](P* p) { set_mask(p)->dtype = FA3_FLOAT16; },
       "block_mask:",
       {"expected int32", "got float16"}},
      {"mask_of_three", [](P* p) { set_mask(p)->rank = 3; }, "block_mask:", {"rank 4", "rank 3"}},
      {"mask_of_heads", [](P* p) { set_mask(p)->shape[1] = 3; }, "block_mask:", {"heads = 4", "3"}},
      {"mask_of_no_keys",
       [](P* p) { set_mask(p)->shape[3] = 0; },
       "block_mask:",
       {"at least 1 blocks of 128", "keys"}},
      {"mask_null", [](P* p) { set_mask(p)->data = nullptr; }, "block_mask:", {"null pointer"}},
      {"mask_on_cuda",
       [](P* p) { set_mask(p)->device_type = FA3_CUDA; },
       "block_mask:",
       {"cpu", "cuda"}},
      {"mask_names_no_bits",
       [](P* p) { *static_cast<int32_t*>(set_mask(p)->data) = 1; },
       "block_mask:",
       {"0 (hidden) or -1 (full), since there are no block_mask_bits", "got 1 at (0, 0, 0, 0)"}},
      {"score_without_tensors",
       [](P* p) {
         static const fa3_score_function kScore = {.text = "return score;", .num_tensors = 1};
         p->options.score = &kScore;
       },
       "score:",
       {"1 captured tensors", "null pointer"}},
      {"score_kind",
       [](P* p) {
         static const fa3_score_function kScore = {.kind = 5, .text = "return score;"};
         p->options.score = &kScore;
       },
       "score:",
       {"FA3_SCORE_ANY to FA3_SCORE_ROW_LINES", "got 5"}},
      {"score_slope_of_what_is_added",
       [](P* p) {
         static const fa3_score_function kScore = {
             .kind = FA3_SCORE_ADDED, .text = "return 1;", .slope = "return 1;"};
         p->options.score = &kScore;
       },
       "score:",
       {"no slope", "FA3_SCORE_ANY", "the kind 1"}},
      {"score_element_of_no_tensor",
       [](P* p) {
         static const fa3_score_function kScore = {
             .text = "return x;", .element = {.kind = FA3_ELEMENT_OF_KEY, .tensor = 1}};
         p->options.score = &kScore;
       },
       "score:",
       {"one of 0 captured tensors", "number 1"}},
      {"score_element_beside_lines",
       [](P* p) {
         static const fa3_score_function kScore = {.kind = FA3_SCORE_ROW_LINE,
                                                   .text = "return {x, 0};",
                                                   .element = {.kind = FA3_ELEMENT_RUN}};
         p->options.score = &kScore;
       },
       "score:",
       {"FA3_SCORE_ANY or FA3_SCORE_ADDED alone", "the kind 3"}},
      {"score_element_without_texts",
       [](P* p) {
         static const fa3_captured_tensor kTensor = {.data = p};
         static const fa3_score_function kScore = {.text = "return x;",
                                                   .element = {.kind = FA3_ELEMENT_RUN},
                                                   .tensors = &kTensor,
                                                   .num_tensors = 1};
         p->options.score = &kScore;
       },
       "score:",
       {"`type` and `indices`", "null pointer"}},
      {"score_element_of_another_kind",
       [](P* p) {
         static const fa3_score_function kScore = {.text = "return x;", .element = {.kind = -1}};
         p->options.score = &kScore;
       },
       "score:",
       {"FA3_ELEMENT_NONE to FA3_ELEMENT_CLAMPED_RUN", "got -1"}},
      {"bits_alone",
       [](P* p) { p->options.block_mask_bits = bits_at(0); },
       "block_mask_bits:",
       {"only together with block_mask"}},
      {"bits_misaligned",
       [](P* p) { set_mask(p), p->options.block_mask_bits = bits_at(4); },
       "block_mask_bits:",
       {"aligned to 16 bytes"}},
      {"bits_apart",
       [](P* p) {
         set_mask(p), p->options.block_mask_bits = bits_at(0),
                      p->options.block_mask_bits.stride[1] = 5;
       },
       "block_mask_bits:",
       {"strides (512, 4, 1)", "got (512, 5, 1)"}},
      {"max_k_negative", [](P* p) { p->options.max_seqlen_k = -3; }, "max_seqlen_k:", {"got -3"}},
  };
  return bad;
}

const std::vector<Bad>& unsupported() {
  static const std::vector<Bad> bad = {
      {"float8_on_the_baseline",
       [](P* p) {
         p->q.dtype = p->k.dtype = p->v.dtype = FA3_FLOAT8_E4M3;
         p->options.engine = FA3_ENGINE_STANDARD;
       },
       "no engine can run this call",
       {"float8_e4m3"},
       FA3_UNSUPPORTED},
      {"cuda_memory_on_a_cpu_engine",
       [](P* p) {
         for (fa3_tensor* t : {&p->q, &p->k, &p->v, &p->o, &p->lse, &p->sink}) {
           t->device_type = FA3_CUDA;
         }
         p->options.engine = FA3_ENGINE_REFERENCE;
       },
       "no engine can run this call",
       {"reference", "cuda"},
       FA3_UNSUPPORTED},
  };
  return bad;
}

class ForwardBadInput : public testing::TestWithParam<Bad> {};
INSTANTIATE_TEST_SUITE_P(shape, ForwardBadInput, testing::ValuesIn(shapes()), name_of_bad_input<P>);
INSTANTIATE_TEST_SUITE_P(type, ForwardBadInput, testing::ValuesIn(types()), name_of_bad_input<P>);
INSTANTIATE_TEST_SUITE_P(option, ForwardBadInput, testing::ValuesIn(options()),
                         name_of_bad_input<P>);
INSTANTIATE_TEST_SUITE_P(feature, ForwardBadInput, testing::ValuesIn(unsupported()),
                         name_of_bad_input<P>);

TEST_P(ForwardBadInput, is_explained_and_changes_nothing) {
  const Bad& bad = GetParam();
  ForwardCall call;
  bad.change(&call.params);
  EXPECT_EQ(call.run(), bad.status) << fa3_last_error();
  EXPECT_TRUE(last_error_says(bad.argument, bad.words));
  EXPECT_TRUE(call.outputs_untouched());
}

// Queries judge everything but the data, and pointers to it, in the same words.
TEST_P(ForwardBadInput, is_found_by_the_query_functions_too) {
  const Bad& bad = GetParam();
  ForwardCall call;
  bad.change(&call.params);
  const std::string name = bad.name;
  const bool needs_data = name.find("null") != std::string::npos || name == "mask_names_no_bits";
  const fa3_status expected = needs_data ? FA3_OK : bad.status;
  size_t bytes = 12345;
  EXPECT_EQ(fa3_forward_supported(&call.params), expected) << fa3_last_error();
  EXPECT_EQ(fa3_forward_workspace_size(&call.params, &bytes), expected);
  EXPECT_TRUE(needs_data || bytes == 12345u) << "written although the call failed";
}

TEST(ForwardCallItself, is_valid_before_it_is_changed) {
  for (bool packed : {false, true}) {
    ForwardCall call(packed);
    EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
    EXPECT_STREQ(fa3_last_error(), "");
    EXPECT_EQ(call.o.find_unwritten() + call.lse.find_unwritten(), "");
  }
}

// Windows as wide as numbers go are unbounded, and do not overflow.
TEST(ForwardCallItself, takes_the_widest_windows) {
  ForwardCall wide, none;
  wide.params.options.window_left = wide.params.options.window_right = kMax;
  wide.params.options.attention_chunk = kMax;
  ASSERT_EQ(wide.run(), FA3_OK) << fa3_last_error();
  ASSERT_EQ(none.run(), FA3_OK) << fa3_last_error();
  EXPECT_EQ(wide.o.element_bits(), none.o.element_bits());
}

TEST(BadForwardStrides, beyond_any_memory_are_not_taken_for_flipped_views) {
  ForwardCall call(false);
  call.params.q.stride[0] = kMax;
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(fa3_last_error()).find("flipped"), std::string::npos) << fa3_last_error();
}

}  // namespace
}  // namespace fa3::test::forward_bad_input
