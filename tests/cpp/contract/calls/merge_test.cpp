// SPDX-License-Identifier: Apache-2.0
//
// Attention over parts of the keys, merged, is attention over all of them.
#include <fa3/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/call/error_rule.h"
#include "contract/fixture.h"
#include "support/limits.h"

namespace fa3::test {
namespace {

// Partial results in one allocation: o (n, b, s, h, dv) and lse (n, b, h, s), as batch n * b.
struct Partials {
  int64_t count;
  Tensor o, lse;

  Partials(int64_t n, const Case& c, Layout layout = Layout::bshd)
      : count(n),
        o(stacked(n, c.o_shape()), FA3_FLOAT32, layout),
        lse(stacked(n, c.lse_shape()), FA3_FLOAT32, Layout::bhsd) {}

  static Shape stacked(int64_t n, Shape shape) {
    shape.batch *= n;
    return shape;
  }
  // Splits the batch dimension of a view into (partials, batch).
  fa3_tensor split(const fa3_tensor& view) const {
    fa3_tensor five = view;
    five.rank = view.rank + 1;
    std::copy(view.shape, view.shape + view.rank, five.shape + 1);
    std::copy(view.stride, view.stride + view.rank, five.stride + 1);
    five.shape[0] = count;
    five.shape[1] = view.shape[0] / count;
    five.stride[0] = five.shape[1] * view.stride[0];
    return five;
  }
  fa3_merge_params params() const {
    fa3_merge_params params;
    fa3_merge_params_init(&params);
    params.o_partial = split(o.dense());
    params.lse_partial = split(lse.dense_lse());
    params.num_threads = 2;
    return params;
  }
};

void copy_batch(const Tensor& from, int64_t from_batch, Tensor* to, int64_t to_batch) {
  const Shape& shape = from.shape();
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      for (int64_t c = 0; c < shape.dim; ++c) {
        to->set(to_batch, row, head, c, from.get(from_batch, row, head, c));
      }
    }
  }
}

// The keys [first, first + count) of every sequence.
Tensor key_slice(const Tensor& keys, int64_t first, int64_t count) {
  Shape shape = keys.shape();
  shape.rows = count;
  Tensor slice(shape, keys.dtype());
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        for (int64_t c = 0; c < shape.dim; ++c) {
          slice.set(b, row, head, c, keys.get(b, first + row, head, c));
        }
      }
    }
  }
  return slice;
}

// One of the partials in the view of all.
fa3_tensor partial(const fa3_tensor& all, int64_t i) {
  fa3_tensor view = all;
  view.rank = all.rank - 1;
  std::copy(all.shape + 1, all.shape + all.rank, view.shape);
  std::copy(all.stride + 1, all.stride + all.rank, view.stride);
  view.data = static_cast<float*>(all.data) + i * all.stride[0];
  return view;
}

struct Merged {
  Tensor o, lse;
};

class Merge : public EngineTest {
 protected:
  // Into fresh memory.
  Merged merge(const Case& c, const Partials& partials, fa3_dtype dtype = FA3_FLOAT32,
               Layout layout = Layout::bshd) const {
    Merged merged{Tensor(c.o_shape(), dtype, layout), Tensor(c.lse_shape(), FA3_FLOAT32)};
    fa3_merge_params params = partials.params();
    params.o = merged.o.dense();
    params.lse = merged.lse.dense_lse();
    Placement placement(engine().memory);
    placement.input(partials.o, &params.o_partial);
    placement.input(partials.lse, &params.lse_partial);
    placement.output(&merged.o, &params.o);
    placement.output(&merged.lse, &params.lse);
    EXPECT_EQ(fa3_merge(&params, nullptr), FA3_OK) << fa3_last_error();
    EXPECT_EQ(placement.fetch(), "");
    EXPECT_EQ(merged.o.find_unwritten() + merged.o.find_damaged_guard(), "");
    EXPECT_EQ(merged.lse.find_unwritten() + merged.lse.find_damaged_guard(), "");
    return merged;
  }
  void expect_parts_make_the_whole(const Case& c, int64_t n) const;
};
FA3_FOR_EVERY_ENGINE(Merge);

// A part of the keys is the whole problem with the diagonal moved: causal becomes a right window.
Case part_of(const Case& whole, int64_t first, int64_t count) {
  Case part = whole;
  part.k.rows = count;
  part.sink = whole.sink && first == 0;
  if (whole.causal) {
    part.causal = false;
    part.right = whole.k.rows - first - count;
  }
  return part;
}

Partials run_parts(const EngineUnderTest& engine, const Case& c, const Inputs& inputs, int64_t n) {
  Partials partials(n, c);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t first = c.k.rows * i / n, count = c.k.rows * (i + 1) / n - first;
    Inputs mine = inputs;
    mine.k = key_slice(inputs.k, first, count);
    mine.v = key_slice(inputs.v, first, count);
    const ForwardRun run = run_forward(engine, part_of(c, first, count), mine);
    EXPECT_EQ(run.problem, "") << c << " part " << i;
    for (int64_t b = 0; b < c.batch; ++b) {
      copy_batch(run.o, b, &partials.o, i * c.batch + b);
      copy_batch(run.lse, b, &partials.lse, i * c.batch + b);
    }
  }
  return partials;
}

void Merge::expect_parts_make_the_whole(const Case& c, int64_t n) const {
  const Inputs inputs = make_inputs(c);
  const Partials partials = run_parts(engine(), c, inputs, n);
  const Textbook book = textbook_forward(c, inputs);
  const double score_roundoff = engine().rounds_scores ? unit_roundoff(c.dtype) : 0;
  for (fa3_dtype dtype : {FA3_FLOAT32, FA3_FLOAT16, FA3_BFLOAT16}) {
    const Merged merged = merge(c, partials, dtype, Layout::padded);
    EXPECT_TRUE(lse_agrees(merged.lse.values(), book, score_roundoff)) << n << " parts, " << c;
    const double roundoff = std::max(unit_roundoff(dtype), unit_roundoff(c.dtype));
    EXPECT_TRUE(test::agrees("o", merged.o.values(), book.o, nullptr,
                             {.roundoff = 10 * roundoff, .terms = &book.o_terms}))
        << n << " parts, " << c;
  }
}

TEST_P(Merge, of_parts_equals_the_whole) {
  const Case shape = dense_case(2, 40, 133, 4, 2, 32, 24);
  Case causal = shape, float32 = shape;
  causal.causal = causal.sink = causal.o_float32 = true;
  float32.o_float32 = true;
  for (const Case& each : {shape, float32, causal}) {
    for (const Case& c : in_each_dtype(each)) {
      for (int64_t n : {1, 2, 3, 17, 133}) {
        if (does(part_of(c, 0, c.k.rows / n))) expect_parts_make_the_whole(c, n);
      }
    }
  }
}

TEST_P(Merge, into_any_partial_is_the_same) {
  const Case c = dense_case(2, 13, 0, 3, 3, 8, 8);
  for (int64_t target : {0, 1, 2}) {
    Partials partials(3, c, Layout::spaced);
    partials.o.randomize(1);
    partials.lse.randomize(2);
    const Merged want = merge(c, partials);
    fa3_merge_params params = partials.params();
    Placement placement(engine().memory);
    placement.output(&partials.o, &params.o_partial);
    placement.output(&partials.lse, &params.lse_partial);
    params.o = partial(params.o_partial, target);
    params.lse = partial(params.lse_partial, target);
    ASSERT_EQ(fa3_merge(&params, nullptr), FA3_OK) << fa3_last_error();
    EXPECT_EQ(placement.fetch(), "");
    Tensor got(c.o_shape(), FA3_FLOAT32), got_lse(c.lse_shape(), FA3_FLOAT32);
    for (int64_t b = 0; b < c.batch; ++b) {
      copy_batch(partials.o, target * c.batch + b, &got, b);
      copy_batch(partials.lse, target * c.batch + b, &got_lse, b);
    }
    EXPECT_TRUE(bits_equal("o", got, want.o)) << "into partial " << target;
    EXPECT_TRUE(bits_equal("lse", got_lse, want.lse)) << "into partial " << target;
    EXPECT_EQ(partials.o.find_damaged_guard(), "");
  }
}

// The o of a partial without keys counts for nothing, whatever it holds.
TEST_P(Merge, of_partials_without_keys_counts_for_nothing) {
  const Case c = dense_case(1, 4, 0, 2, 2, 8, 8);
  Partials partials(3, c);
  partials.o.randomize(1);
  partials.lse.randomize(2);
  Merged only = merge(c, partials);
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t i : {0, 2}) {
      partials.lse.fill_row(i, row, -kInfinity);
      partials.o.fill_row(i, row, std::numeric_limits<float>::quiet_NaN());
    }
  }
  copy_batch(partials.o, 1, &only.o, 0);
  copy_batch(partials.lse, 1, &only.lse, 0);
  const Merged got = merge(c, partials);
  EXPECT_TRUE(bits_equal("o", got.o, only.o));
  EXPECT_TRUE(bits_equal("lse", got.lse, only.lse));
}

TEST_P(Merge, of_empty_partials_alone_gives_zero_and_minus_infinity) {
  const Case c = dense_case(2, 5, 0, 2, 2, 8, 8);
  Partials partials(2, c);
  partials.o.randomize(1);
  partials.lse.randomize(2);
  for (int64_t b : {1, 3}) partials.lse.fill_row(b, 2, -kInfinity);  // batch entry 1 of both
  const Merged got = merge(c, partials);
  for (int64_t row = 0; row < 5; ++row) {
    const bool empty = row == 2;
    EXPECT_EQ(got.lse.get(1, row, 0, 0) == -kInfinity, empty) << "row " << row;
    EXPECT_EQ(got.o.get(1, row, 1, 3) == 0, empty) << "row " << row;
  }
}

TEST_P(Merge, of_large_lse_does_not_overflow) {
  const Case c = dense_case(1, 1, 0, 1, 1, 8, 8);
  Partials partials(2, c);
  partials.o.fill_row(0, 0, 1);
  partials.o.fill_row(1, 0, 3);
  for (float level : {30000.0f, -30000.0f}) {
    partials.lse.fill_row(0, 0, level);
    partials.lse.fill_row(1, 0, level);
    const Merged got = merge(c, partials);
    EXPECT_EQ(got.o.get(0, 0, 0, 0), 2) << level;
    EXPECT_NEAR(got.lse.get(0, 0, 0, 0), level + std::log(2.0f), 0.01) << level;
  }
}

// As an infinite sink gives it: such partials share the row.
TEST_P(Merge, of_an_infinite_lse_leaves_nothing_to_others) {
  const Case c = dense_case(1, 1, 0, 1, 1, 8, 8);
  Partials partials(3, c);
  for (int64_t i : {0, 1, 2}) {
    partials.o.fill_row(i, 0, static_cast<float>(i));
    partials.lse.fill_row(i, 0, i == 1 ? 3e38f : kInfinity);
  }
  const Merged got = merge(c, partials);
  EXPECT_EQ(got.o.get(0, 0, 0, 0), 1);  // the mean of 0 and 2
  EXPECT_EQ(got.lse.get(0, 0, 0, 0), kInfinity);
}

}  // namespace
}  // namespace fa3::test
