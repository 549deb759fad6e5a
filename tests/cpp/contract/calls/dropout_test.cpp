// SPDX-License-Identifier: Apache-2.0
//
// Dropout against the textbook under the same mask, in both passes: lengths next to every block
// size, so that the mask cannot depend on tiles; and with every other feature.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "contract/fixture.h"

namespace fa3::test {
namespace {

class Dropout : public EngineTest {};
FA3_FOR_EVERY_ENGINE(Dropout);

Case with_dropout(Case c, float p = 0.3f) {
  c.dropout_p = p;
  c.dropout_seed = 0x9876543210fedcba;
  c.dropout_offset = 0x1122334455667788;
  return c;
}

TEST_P(Dropout, lengths_next_to_a_block) {
  for (int64_t seqlen_q : {1, 9, 97, 200}) {
    for (int64_t seqlen_k : {1, 15, 193, 530}) {
      for (const Case& c : in_each_dtype(dense_case(1, seqlen_q, seqlen_k, 2, 1, 24, 40))) {
        EXPECT_TRUE(agrees(with_dropout(c)));
      }
    }
  }
}

// Few rows read their keys in place, from wherever the window begins.
TEST_P(Dropout, windows_that_begin_anywhere) {
  for (int64_t seqlen_q : {1, 5, 20, 130}) {
    for (int64_t left : {37, 100}) {
      Case c = dense_case(2, seqlen_q, 411, 2, 1, 32, 32, FA3_BFLOAT16);
      c.left = left;
      c.right = 3;
      EXPECT_TRUE(agrees(with_dropout(c)));
    }
  }
}

TEST_P(Dropout, groups_and_splits) {
  for (int64_t heads_q : {1, 3, 8}) {
    for (int num_splits : {0, 3}) {
      Case c = dense_case(2, 7, 1100, heads_q, 1, 32, 32, FA3_FLOAT16);
      c.num_splits = num_splits;
      EXPECT_TRUE(agrees(with_dropout(c)));
      c.dtype = FA3_BFLOAT16;
      EXPECT_TRUE(agrees(with_dropout(c)));
    }
  }
}

TEST_P(Dropout, every_feature_across_blocks) {
  Case c = dense_case(3, 0, 0, 4, 2, 24, 32);
  c.q = {.owned = {130, 3, 411}, .spare_rows = 4, .used = {101, 3, 400}};
  c.k = {.owned = {500, 1, 413}, .spare_rows = 2, .used = {480, 0, 413}};
  c.left = 200;
  c.right = 3;
  c.softcap = 5;
  c.sink = c.d_lse = true;
  for (const Case& typed : in_each_dtype(c)) EXPECT_TRUE(agrees(with_dropout(typed)));
}

// A part of a whole drops what the whole does.
TEST_P(Dropout, begins_anywhere) {
  for (int64_t seqlen_q : {3, 70}) {
    for (const Case& typed : in_each_dtype(dense_case(2, seqlen_q, 150, 4, 2, 24, 32))) {
      Case c = with_dropout(typed);
      c.dropout_origin = {.sequence = 2, .head = 3, .query = 48, .key = 192};
      EXPECT_TRUE(agrees(c));
    }
  }
}

TEST_P(Dropout, any_probability) {
  for (float p : {1e-6f, 0.1f, 0.5f, 0.99f, 1.0f}) {
    Case c = dense_case(1, 100, 120, 2, 2, 64, 64);
    c.d_lse = true;
    EXPECT_TRUE(agrees(with_dropout(c, p)));
    c.dtype = FA3_BFLOAT16;
    EXPECT_TRUE(agrees(with_dropout(c, p)));
  }
}

TEST_P(Dropout, of_none_changes_no_bit) {
  for (Case c : in_each_dtype(dense_case(2, 70, 300, 4, 2, 64, 64))) {
    const Inputs inputs = make_inputs(c);
    const Runs plain = both(c, inputs);
    const Runs none = both(with_dropout(c, 0), inputs);
    EXPECT_TRUE(bits_equal("bits", plain.forward.o, none.forward.o)) << c;
    EXPECT_TRUE(bits_equal("bits", plain.forward.lse, none.forward.lse)) << c;
    if (!plain.backward) continue;
    EXPECT_TRUE(bits_equal("bits", plain.backward->dq, none.backward->dq)) << c;
    EXPECT_TRUE(bits_equal("bits", plain.backward->dv, none.backward->dv)) << c;
  }
}

// The LSE knows nothing of it; everything dropped is zeros.
TEST_P(Dropout, of_all_gives_zeros) {
  const Case c = dense_case(1, 90, 200, 2, 2, 64, 64);
  if (!does(with_dropout(c, 1))) return;
  const Inputs inputs = make_inputs(c);
  const Runs plain = both(c, inputs);
  const Runs all = both(with_dropout(c, 1), inputs);
  EXPECT_TRUE(bits_equal("bits", plain.forward.lse, all.forward.lse));
  const auto largest = [](const Tensor& tensor) {
    double most = 0;
    for (double x : tensor.values().numbers) most = std::max(most, std::abs(x));
    return most;
  };
  EXPECT_EQ(largest(all.forward.o), 0);
  EXPECT_GT(largest(plain.forward.o), 0);
  if (!all.backward) return;
  for (const Tensor* gradient : {&all.backward->dq, &all.backward->dk, &all.backward->dv}) {
    EXPECT_EQ(largest(*gradient), 0);
  }
}

// A CUDA graph that is launched again reads the scalars again.
TEST_P(Dropout, scalars_in_memory_stand_for_values) {
  const Case c = with_dropout(dense_case(1, 33, 47, 2, 2, 32, 32));
  if (engine().memory != FA3_CPU || !does(c)) return;
  const Inputs inputs = make_inputs(c);
  const ForwardRun by_value = forward(c, inputs);
  uint64_t scalars[] = {c.dropout_seed, c.dropout_offset};
  Tensor o(c.o_shape(), c.o_dtype(), c.out), lse(c.lse_shape(), FA3_FLOAT32);
  fa3_forward_params params = forward_params(engine().id, c, inputs, o, lse);
  params.options.dropout_seed = params.options.dropout_offset = 0;
  params.options.dropout_seed_at = &scalars[0];
  params.options.dropout_offset_at = &scalars[1];
  std::vector<std::byte> room(1 << 24);
  void* workspace = room.data();
  size_t bytes = room.size();
  ASSERT_NE(std::align(256, bytes / 2, workspace, bytes), nullptr);
  const auto run = [&] { return fa3_forward(&params, workspace, bytes / 2, nullptr); };
  ASSERT_EQ(run(), FA3_OK) << fa3_last_error();
  EXPECT_TRUE(bits_equal("bits", o, by_value.o));
  ++scalars[1];
  ASSERT_EQ(run(), FA3_OK) << fa3_last_error();
  EXPECT_FALSE(bits_equal("bits", o, by_value.o));
}

}  // namespace
}  // namespace fa3::test
