// SPDX-License-Identifier: Apache-2.0
// Which calls with a score function decode kernels take, which whole tiles, and which are left to
// another engine.
#include <gtest/gtest.h>

#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/plan/select/select.h"
#include "engine/hopper/plan/select/serving.h"

namespace fa3::hopper {
namespace {

struct Scored : testing::Test {
  Scored() {
    score.text = "return score * 2.0f;";
    p = plain();
    p.heads_q = 32, p.heads_k = 8;
    p.lengths_q.max = 1, p.lengths_k.max = 8192;
    p.lengths_k.varlen = true;
    p.score = &score;
  }
  int decode_rows() const {
    const Row* const row = select(request_of(p, kSms)).row;
    return row != nullptr && row->kernel.is_decode() ? row->kernel.shape.block_m : 0;
  }
  std::string refusal() const {
    const Request request = request_of(p, kSms);
    const Status served = check_served(request);
    if (!served.ok()) return served.message();
    const Row* const row = select(request).row;
    return (row ? check_score(request, *row) : refuse_many_queries(request)).message();
  }

  fa3_score_function score{};
  Problem p;
};

TEST_F(Scored, few_rows_take_decode_kernels_however_many_keys_there_are) {
  for (const int64_t batch : {1, 2, 8, 64, 128}) {
    p.batch = batch;
    EXPECT_EQ(decode_rows(), 8) << batch;
    EXPECT_EQ(refusal(), "");
  }
  p.lengths_q.max = 4;
  EXPECT_EQ(decode_rows(), 16);
  p.lengths_q.max = 5;  // 20 rows
  EXPECT_EQ(decode_rows(), 0);
}

TEST_F(Scored, decode_kernels_take_pages_and_quantized_caches) {
  p.key_places = {.page_size = 16, .entries = 2, .elsewhere = true};
  p.key_places.pages = 1024;
  EXPECT_EQ(decode_rows(), 8);
  p.kv_dtype = DType::float8_e4m3;
  EXPECT_EQ(decode_rows(), 8);
  EXPECT_EQ(refusal(), "");
}

TEST_F(Scored, what_no_decode_kernel_takes_is_refused_over_caches) {
  p.lengths_q.max = 64;
  p.key_places = {.page_size = 16, .entries = 2, .elsewhere = true};
  p.key_places.pages = 1024;
  EXPECT_NE(refusal().find("a score function beside page_table"), std::string::npos);
  p.key_places = {};
  p.lengths_k.padded_left = true;
  EXPECT_NE(refusal().find("left_padding"), std::string::npos);
  p.lengths_k.padded_left = false;
  EXPECT_NE(refusal().find("few queries"), std::string::npos);  // 64 CTAs
  p.engine = FA3_ENGINE_HOPPER;
  EXPECT_EQ(refusal(), "");
}

TEST_F(Scored, whole_tiles_that_fill_the_gpu_stay) {
  p.lengths_q.max = 4096;
  EXPECT_EQ(refusal(), "");
  p.lengths_q.max = 256, p.batch = 8;
  EXPECT_EQ(refusal(), "");
  p.lengths_q.max = 64;  // two waves of half a tile each, or one of whole tiles elsewhere
  EXPECT_EQ(refusal(), "");
  p.lengths_q.max = 512, p.batch = 1;
  EXPECT_EQ(refusal(), "");
  p.lengths_q.max = 128;
  EXPECT_NE(refusal().find("few queries"), std::string::npos);
  p.lengths_q.max = 16, p.batch = 8;  // four heads share a tile elsewhere
  EXPECT_NE(refusal().find("few queries"), std::string::npos);
  p.batch_invariant = true;  // nor does another engine split these
  EXPECT_EQ(refusal(), "");
  p.batch_invariant = false;
  p.lengths_k.max = 500;
  EXPECT_EQ(refusal(), "");
}

// Kernels of shorter steps have no registers for a function.
TEST_F(Scored, beside_a_block_mask_a_step_is_a_block) {
  p.block_mask.on = true;
  EXPECT_EQ(decode_rows(), 0);
  for (const int64_t head_dim : {40, 64, 128}) {
    p.head_dim = p.head_dim_v = head_dim;
    const Row* const row = chosen_for(p).row;
    ASSERT_NE(row, nullptr) << head_dim;
    EXPECT_TRUE(row->kernel.block_mask());
    EXPECT_EQ(row->kernel.shape.block_n, kMaskBlock);
    EXPECT_EQ(row->kernel.shape.head_dim, head_dim <= 64 ? 64 : 128);
  }
  p.head_dim = p.head_dim_v = 192;
  EXPECT_EQ(chosen_for(p).row, nullptr);
}

TEST_F(Scored, lines_runs_and_key_terms_are_for_three_warpgroups_where_these_gain) {
  p.lengths_q.max = 1000;
  fa3_captured_tensor captured{};
  fa3_score_function score{};
  score.tensors = &captured;
  score.num_tensors = 1;
  p.score = &score;
  score.text = "";
  struct Kind {
    fa3_score_kind kind;
    fa3_element_kind element;
  };
  const auto warpgroups = [&](const Kind& kind, int64_t head_dim, int64_t keys) {
    score.kind = kind.kind;
    score.element.kind = kind.element;
    p.head_dim = p.head_dim_v = head_dim;
    p.lengths_k.max = keys;
    return chosen_kernel(p).consumers();
  };
  constexpr Kind kLine{FA3_SCORE_ROW_LINE, FA3_ELEMENT_NONE},
      kTwoLines{FA3_SCORE_ROW_LINES, FA3_ELEMENT_NONE},
      kKeyTerm{FA3_SCORE_KEY_TERM, FA3_ELEMENT_NONE}, kRun{FA3_SCORE_ADDED, FA3_ELEMENT_RUN},
      kClampedRun{FA3_SCORE_ADDED, FA3_ELEMENT_CLAMPED_RUN},
      kOther{FA3_SCORE_ADDED, FA3_ELEMENT_NONE}, kRunOfAny{FA3_SCORE_ANY, FA3_ELEMENT_RUN};
  for (const int64_t keys : {1000, 20000}) {
    for (const int64_t head_dim : {64, 128}) {
      EXPECT_EQ(warpgroups(kLine, head_dim, keys), 3);
      EXPECT_EQ(warpgroups(kKeyTerm, head_dim, keys), 3);
      EXPECT_EQ(warpgroups(kOther, head_dim, keys), 2);
      EXPECT_EQ(warpgroups(kRunOfAny, head_dim, keys), 2);
      const int gaining = head_dim == 64 || keys == 20000 ? 3 : 2;
      EXPECT_EQ(warpgroups(kRun, head_dim, keys), gaining);
      EXPECT_EQ(warpgroups(kClampedRun, head_dim, keys), gaining);
      EXPECT_EQ(warpgroups(kTwoLines, head_dim, keys), gaining);
    }
    EXPECT_EQ(warpgroups(kLine, 256, keys), 2);
  }
  p.batch_invariant = true;  // the longest of a batch decides nothing
  EXPECT_EQ(warpgroups(kRun, 128, 20000), 2);
  EXPECT_EQ(warpgroups(kLine, 128, 20000), 3);
}

TEST_F(Scored, batch_invariant_and_split_calls_take_no_decode_kernel) {
  p.num_splits = 2;
  EXPECT_EQ(decode_rows(), 0);
  p.num_splits = 0;
  p.batch_invariant = true;
  EXPECT_EQ(decode_rows(), 0);
}

}  // namespace
}  // namespace fa3::hopper
