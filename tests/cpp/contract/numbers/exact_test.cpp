// SPDX-License-Identifier: Apache-2.0
//
// Rows ruled by one key. With one visible key, O is that key's V, bit for bit. Where one score
// leads all others by 40 natural units or more, these together weigh less than 2^-57 times their
// number: nothing that float32 could tell, so O is that V too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/call/error_rule.h"
#include "contract/fixture.h"

namespace fa3::test {
namespace {

class OneKey : public EngineTest {
 protected:
  // The slack of a float32 output. GPUs show how a reference was rounded, and must round to V.
  // Arm's products of bfloat16 round their sums to odd: weights too small to count still set the
  // last bit.
  double slack(const Case& c) const {
    if (!c.o_float32) return 0;
    if (engine().memory == FA3_CUDA) return unit_roundoff(c.dtype) / 2;
    const bool odd = engine_detail(engine().name).find("neon_bf16") != std::string::npos;
    return odd && c.dtype == FA3_BFLOAT16 ? 0x1p-21 : 0;
  }

  // Row `row` of sequence b must be V of its key, as the output's dtype holds it.
  testing::AssertionResult is_value_of(const Case& c, const Inputs& inputs, const ForwardRun& run,
                                       int64_t b, int64_t row, int64_t key) const {
    const Sequence q_at = c.sequence_q(b), k_at = c.sequence_k(b);
    const double allowed = slack(c);
    for (int64_t head = 0; head < c.heads_q; ++head) {
      for (int64_t col = 0; col < c.dim_v; ++col) {
        const float value = inputs.v.get(k_at.batch, k_at.first + key, head / c.group(), col);
        const float got = run.o.get(q_at.batch, q_at.first + row, head, col);
        if (std::abs(got - value) <= allowed * std::abs(value)) continue;
        return testing::AssertionFailure()
               << engine().name << ", " << c << ": " << coordinates(b, row, head, col) << ": got "
               << got << ", V of key " << key << " is " << value << ", off by "
               << (got - value) / value << " of it";
      }
    }
    return testing::AssertionSuccess();
  }

  // Both output dtypes of each input dtype.
  std::vector<Case> in_all_dtypes(Case c) {
    std::vector<Case> cases = in_each_dtype(c);
    c.o_float32 = true;
    for (const Case& each : in_each_dtype(c)) cases.push_back(each);
    return cases;
  }
};
FA3_FOR_EVERY_ENGINE(OneKey);

TEST_P(OneKey, alone_is_the_row) {
  for (const Case& c : in_all_dtypes(dense_case(2, 37, 1, 4, 2, 64, 40))) {
    for (double gain : {1.0, 20.0}) {
      Case louder = c;
      louder.gain = gain;
      const Inputs inputs = make_inputs(louder);
      const ForwardRun run = forward(louder, inputs);
      for (int64_t row = 0; row < c.q.rows; ++row) {
        ASSERT_TRUE(is_value_of(louder, inputs, run, 1, row, 0));
      }
    }
  }
}

TEST_P(OneKey, alone_is_the_first_causal_row) {
  for (const auto& [seqlen, dim] : {std::pair{300, 64}, {129, 128}, {70, 256}}) {
    Case shape = dense_case(1, seqlen, seqlen, 4, 2, dim, dim);
    shape.causal = true;
    for (const Case& c : in_all_dtypes(shape)) {
      const Inputs inputs = make_inputs(c);
      ASSERT_TRUE(is_value_of(c, inputs, forward(c, inputs), 0, 0, 0));
    }
  }
}

TEST_P(OneKey, alone_is_every_row_of_a_window_of_one) {
  Case shape = dense_case(1, 150, 150, 2, 2, 64, 64);
  shape.left = shape.right = 0;
  for (const Case& c : in_all_dtypes(shape)) {
    const Inputs inputs = make_inputs(c);
    const ForwardRun run = forward(c, inputs);
    for (int64_t row = 0; row < c.q.rows; ++row) {
      ASSERT_TRUE(is_value_of(c, inputs, run, 0, row, row));
    }
  }
}

TEST_P(OneKey, alone_is_a_sequence_of_a_ragged_batch) {
  Case packed = dense_case(3, 0, 0, 4, 2, 64, 64);
  packed.q = {.owned = {5, 70, 3}};
  packed.k = {.owned = {40, 1, 90}};
  Case used = dense_case(3, 33, 50, 4, 2, 64, 64);
  used.k.used = {50, 1, 20};
  for (const Case& shape : {packed, used}) {
    for (const Case& c : in_all_dtypes(shape)) {
      const Inputs inputs = make_inputs(c);
      const ForwardRun run = forward(c, inputs);
      for (int64_t row = 0; row < c.sequence_q(1).used; ++row) {
        ASSERT_TRUE(is_value_of(c, inputs, run, 1, row, 0));
      }
    }
  }
}

// Scores are flat but for one key, wherever engines have their blocks: first, middle, last, and on
// either side of usual tile edges.
TEST_P(OneKey, ahead_by_40_is_the_row) {
  for (const Case& c : in_all_dtypes(dense_case(1, 70, 900, 1, 1, 64, 64))) {
    for (float lead : {40.0f, 1000.0f}) {
      for (int64_t key : {0, 79, 80, 128, 450, 771, 899}) {
        Inputs inputs = make_inputs(c);
        for (int64_t row = 0; row < c.q.rows; ++row) inputs.q.fill_row(0, row, 1.0f / 8);
        for (int64_t other = 0; other < c.k.rows; ++other) inputs.k.fill_row(0, other, 0);
        // scale 1/8, 64 columns: a score of `lead`, rounded up where the dtype needs it
        inputs.k.fill_row(0, key, lead * 1.01f);
        const ForwardRun run = forward(c, inputs);
        for (int64_t row : {0, 1, 33, 69}) {
          ASSERT_TRUE(is_value_of(c, inputs, run, 0, row, key)) << "lead " << lead;
        }
      }
    }
  }
}

// In e4m3 the others' weights are small numbers, whose products are smaller still beside the sum
// that has that key's: where the tensor core cuts these (docs/numerics.md), they may not be lost.
// Here all others have a third of the row, and values of one sign.
TEST_P(OneKey, ahead_by_9_leaves_the_others_their_part_in_e4m3) {
  constexpr int64_t kKeys = 4608;
  constexpr float kLead = 9;
  int done = 0;
  for (const int64_t dim : {64, 128, 256}) {
    Case c = dense_case(1, 70, kKeys, 1, 1, dim, dim, FA3_FLOAT8_E4M3);
    c.scale = 8.0f / float(dim);
    if (!does(c)) continue;
    Inputs inputs = make_inputs(c);
    for (int64_t row = 0; row < c.q.rows; ++row) inputs.q.fill_row(0, row, 1.0f / 8);
    std::vector<double> want(static_cast<size_t>(dim));
    const double weight = std::exp(double{kLead}), sum = kKeys - 1 + weight;
    for (int64_t key = 0; key < kKeys; ++key) {
      const bool leads = key == kKeys - 1;
      inputs.k.fill_row(0, key, leads ? kLead : 0);
      for (int64_t col = 0; col < dim; ++col) {
        inputs.v.set(0, key, 0, col, 2 + inputs.v.get(0, key, 0, col) / 2);
        want[size_t(col)] += (leads ? weight : 1) / sum * double{inputs.v.get(0, key, 0, col)};
      }
    }
    const ForwardRun run = forward(c, inputs);
    for (const int64_t row : {0, 1, 33, 69}) {
      double off = 0, size = 0;
      for (int64_t col = 0; col < dim; ++col) {
        const double x = want[size_t(col)], error = run.o.get(0, row, 0, col) - x;
        off += error * error, size += x * x;
      }
      EXPECT_LT(std::sqrt(off / size), 0.05) << engine().name << ", " << c << ", row " << row;
    }
    ++done;
  }
  if (done == 0) GTEST_SKIP() << engine().name << " does not take e4m3";
}

// Weights of 0.74 round up by 0.2% in bfloat16: the CPU engine divides by the sum of what it has
// rounded, so that equal values come back.
TEST_P(OneKey, equal_values_come_back_whatever_weights_are_rounded_to) {
  if (engine().id != FA3_ENGINE_CPU) GTEST_SKIP() << engine().name << " has no such promise";
  for (const Case& c : in_all_dtypes(dense_case(1, 70, 900, 1, 1, 64, 64))) {
    if (!c.o_float32 && c.dtype != FA3_FLOAT32) continue;
    Inputs inputs = make_inputs(c);
    for (int64_t row = 0; row < c.q.rows; ++row) inputs.q.fill_row(0, row, 1.0f / 8);
    for (int64_t key = 0; key < c.k.rows; ++key) {
      inputs.k.fill_row(0, key, key == 0 ? 0.3f : 0.0f);
      inputs.v.fill_row(0, key, 1);
    }
    const ForwardRun run = forward(c, inputs);
    for (int64_t row = 0; row < c.q.rows; ++row) {
      ASSERT_NEAR(run.o.get(0, row, 0, 0), 1.0f, 1e-5) << c;
    }
  }
}

bool all_zero(const Tensor& tensor) {
  const std::vector<double> numbers = tensor.values().numbers;
  return std::all_of(numbers.begin(), numbers.end(), [](double x) { return x == 0; });
}

// Softmax over it is 1 whatever its score is.
TEST_P(OneKey, alone_has_no_gradient_of_its_scores) {
  Case plain = dense_case(2, 239, 1, 4, 2, 72, 40);
  Case causal = plain;
  causal.causal = true;
  for (const Case& shape : {plain, causal}) {
    for (const Case& c : in_each_dtype(shape)) {
      if (!does_backward(c)) continue;
      const Inputs inputs = make_inputs(c);
      const Runs run = both(c, inputs);
      EXPECT_TRUE(all_zero(run.backward->dq)) << c;
      EXPECT_TRUE(all_zero(run.backward->dk)) << c;
      EXPECT_FALSE(all_zero(run.backward->dv)) << c;
    }
  }
}

double score(const Case& c, const Inputs& inputs, int64_t head, int64_t row, int64_t key) {
  double sum = 0;
  for (int64_t col = 0; col < c.dim; ++col) {
    sum += double{inputs.q.get(0, row, head, col)} * double{inputs.k.get(0, key, head, col)};
  }
  return c.effective_scale() * sum;
}

// By how much the key's score leads the others'.
double lead(const Case& c, const Inputs& inputs, int64_t head, int64_t row, int64_t key) {
  const double its = score(c, inputs, head, row, key);
  double least = its;
  for (int64_t other = 0; other < c.k.rows; ++other) {
    if (other != key) least = std::min(least, its - score(c, inputs, head, row, other));
  }
  return least;
}

// Noise in every score, and another key for each row.
TEST_P(OneKey, ahead_by_40_of_noisy_scores_is_the_row) {
  for (const Case& c : in_all_dtypes(dense_case(1, 128, 512, 1, 1, 64, 64))) {
    Inputs inputs = make_inputs(c);
    const auto key_of = [](int64_t row) { return row * 37 % 512; };
    for (int64_t row = 0; row < c.q.rows; ++row) {  // q = 10 k: a score of 10/8 |k|^2, about 80
      for (int64_t col = 0; col < c.dim; ++col) {
        inputs.q.set(0, row, 0, col, 10 * inputs.k.get(0, key_of(row), 0, col));
      }
    }
    const ForwardRun run = forward(c, inputs);
    int ruled = 0;
    for (int64_t row = 0; row < c.q.rows; ++row) {
      if (lead(c, inputs, 0, row, key_of(row)) < 40) continue;
      ++ruled;
      ASSERT_TRUE(is_value_of(c, inputs, run, 0, row, key_of(row)));
    }
    EXPECT_GT(ruled, 20) << c;
  }
}

}  // namespace
}  // namespace fa3::test
