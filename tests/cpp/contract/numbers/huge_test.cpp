// SPDX-License-Identifier: Apache-2.0
//
// Finite scores of any size. A score of 1e9 is off by some hundred natural units, so rows are
// tested whose softmax does not depend on that: equal scores share a row, and a score that leads by
// its own size takes it. Every product is a power of two times 1.25 x 1.25, so sums of 64 or 128 of
// them are exact in any order, and equal keys have equal scores in every engine.
//
// A backward pass computes P = exp(S - LSE) from a float32 LSE. Both are off by up to d = 2^-20
// |S|, so a weight may be anything between P e^-d and P e^d, but no more than 1 (docs/numerics.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cli/call/error_rule.h"
#include "contract/fixture.h"
#include "support/cases/cache.h"
#include "support/cases/fp8.h"

namespace fa3::test {
namespace {

// How a call comes to its scores: by the option, or by large queries and keys.
enum class Source { scale, operands };

// Which keys have a row's largest score: all; or some, the others having half of it or less. In
// rows of negative scores the leaders are those others.
enum class Leaders { all, first, last, middle, two, every_third };

struct HugeCase {
  Case c;
  double score;
  Source source;
  Leaders leaders;
};

std::string describe(const HugeCase& h) {
  constexpr const char* kLeaders[] = {"all keys",     "the first", "the last",
                                      "a middle one", "two keys",  "every third"};
  return describe(h.c) + ", scores of " + std::to_string(h.score) + " from " +
         (h.source == Source::scale ? "the scale" : "the operands") + ", " +
         kLeaders[static_cast<int>(h.leaders)] + " leads";
}

bool leads(Leaders leaders, int64_t key, int64_t keys) {
  switch (leaders) {
    case Leaders::all:
      return true;
    case Leaders::first:
      return key == 0;
    case Leaders::last:
      return key == keys - 1;
    case Leaders::middle:
      return key == keys * 5 / 8;
    case Leaders::two:
      return key == keys / 7 || key == keys - 2;
    default:
      return key % 3 == 0;
  }
}

// The scale and the factors of q and k that make scores of about this size.
struct Factors {
  float scale, q, k;
};
Factors factors_of(const HugeCase& h) {
  const auto dim = static_cast<double>(h.c.dim);
  if (h.source == Source::scale) {
    return {static_cast<float>(h.score / dim / (1.25 * 1.25)), 1.25f, 1.25f};
  }
  const double product = h.score / std::sqrt(dim) / (1.25 * 1.25);
  const int power = static_cast<int>(std::floor(std::log2(product)));
  return {FA3_SCALE_AUTO, std::ldexp(1.25f, power / 2), std::ldexp(1.25f, power - power / 2)};
}

// float16 and e4m3 hold no larger queries and keys.
bool is_possible(const HugeCase& h) {
  if (h.source == Source::scale) return true;
  const double largest = h.c.dtype == FA3_FLOAT16       ? 32768
                         : h.c.dtype == FA3_FLOAT8_E4M3 ? 256
                                                        : 1e18;
  const Factors factors = factors_of(h);
  return std::max(factors.q, factors.k) <= largest;
}

// Odd rows have the negative scores of even ones, every fourth row half as large ones.
Inputs inputs_of(HugeCase* h) {
  Case& c = h->c;
  const Factors factors = factors_of(*h);
  c.scale = factors.scale;
  Inputs inputs = make_inputs(c);
  for (int64_t b = 0; b < c.batch; ++b) {
    const Sequence q = c.sequence_q(b), k = c.sequence_k(b);
    for (int64_t row = 0; row < q.used; ++row) {
      const float size = row % 4 == 3 ? 0.5f : 1.0f;
      inputs.q.fill_row(q.batch, q.first + row, (row % 2 == 0 ? size : -size) * factors.q);
    }
    for (int64_t key = 0; key < k.used; ++key) {
      const bool first = leads(h->leaders, key, k.used);
      inputs.k.fill_row(k.batch, k.first + key, (first ? 1.0f : 0.5f) * factors.k);
    }
  }
  return inputs;
}

// What an engine may be off in O: the roundings of weights, of their float32 sum and of O. Scores
// beyond 1e4 cost nothing more, for equal ones are equal and others weigh nothing.
double roundoff_of(const EngineUnderTest& engine, const Case& c, double largest_score) {
  const auto keys = static_cast<double>(std::max<int64_t>(c.k.longest(), 1));
  const fa3_dtype in = c.dtype == FA3_FLOAT8_E4M3 ? FA3_BFLOAT16 : c.dtype;
  const double of_scores = std::min(largest_score, 1e4);
  const bool rounds_weights = c.dtype == FA3_FLOAT8_E4M3 && engine.multiplies_e4m3;
  return roundoff_of_call(in, c.o_dtype(), static_cast<double>(c.dim), of_scores) +
         0x1p-24 * std::sqrt(keys) / 2 + (rounds_weights ? kE4m3WeightRoundoff : 0);
}

class Huge : public EngineTest {
 protected:
  bool can(const HugeCase& h) {
    // Stored scores end where their type does.
    const bool overflows = engine().rounds_scores && h.c.dtype == FA3_FLOAT16 && h.score > 3e4;
    return is_possible(h) && !overflows && does(h.c);
  }

  testing::AssertionResult forward_is_right(const HugeCase& h, const Inputs& inputs,
                                            const ForwardRun& run) const {
    return forward_is_right(h, textbook_forward(dequantized(h.c), dequantized(h.c, inputs)), run);
  }

  testing::AssertionResult forward_is_right(const HugeCase& h, const Textbook& book,
                                            const ForwardRun& run) const {
    const double score_roundoff = engine().rounds_scores ? unit_roundoff(h.c.dtype)
                                  : engine().multiplies_e4m3 && h.c.dtype == FA3_FLOAT8_E4M3
                                      ? kE4m3ScoreRoundoff
                                      : 0;
    const auto lse = lse_agrees(run.lse.values(), book, score_roundoff);
    if (!lse) return failed(h, lse.message());
    const auto o = test::agrees("o", run.o.values(), book.o, nullptr,
                                {.roundoff = roundoff_of(engine(), h.c, book.largest_score),
                                 .underflow = underflow(run.o.dtype()),
                                 .terms = &book.o_terms});
    return o ? o : failed(h, o.message());
  }

  testing::AssertionResult backward_is_bounded(const HugeCase& h, const Inputs& inputs,
                                               const Textbook& book, const BackwardRun& run) const;

  testing::AssertionResult failed(const HugeCase& h, const std::string& why) const {
    return testing::AssertionFailure() << engine().name << ", " << describe(h) << ": " << why;
  }

  void expect_right(HugeCase h) {
    for (fa3_dtype dtype : {FA3_FLOAT32, FA3_FLOAT16, FA3_BFLOAT16}) {
      h.c.dtype = dtype;
      HugeCase mine = h;
      if (!can(mine)) continue;
      const Inputs inputs = inputs_of(&mine);
      const Runs run = both(mine.c, inputs);
      const Textbook book = textbook_forward(mine.c, inputs);
      EXPECT_TRUE(forward_is_right(mine, book, run.forward));
      if (!run.backward) continue;
      EXPECT_TRUE(backward_is_bounded(mine, inputs, book, *run.backward));
    }
  }
};
FA3_FOR_EVERY_ENGINE(Huge);

// The least and the largest weight that a backward may compute where `weight` is right.
struct Bounds {
  double least, most;
};
Bounds bounds_of(double weight, double off) {
  return {weight * std::exp(-off), std::min(1.0, weight * std::exp(off))};
}

// dV_j = sum_i P_ij dO_i between the sums of both bounds; |dS_ij| <= P_ij |dP_ij - D_i|, which
// bounds dQ and dK.
testing::AssertionResult Huge::backward_is_bounded(const HugeCase& h, const Inputs& inputs,
                                                   const Textbook& book,
                                                   const BackwardRun& run) const {
  const Case& c = h.c;
  const double off = 1e-3 + 0x1p-20 * book.largest_score +
                     (engine().rounds_scores ? 2 * unit_roundoff(c.dtype) : 0);
  const double slack =
      1 + 8 * unit_roundoff(c.dtype) + 0x1p-24 * std::sqrt(double(c.q.longest() * c.group()));
  Values least(c.v_shape()), most(c.v_shape());
  Values dq(c.q_shape()), dk(c.k_shape());
  const double scale = c.effective_scale();
  for (int64_t b = 0; b < c.batch; ++b) {
    const Sequence q = c.sequence_q(b), k = c.sequence_k(b);
    for (int64_t head = 0; head < c.heads_q; ++head) {
      const int64_t kv_head = head / c.group();
      for (int64_t i = 0; i < q.used; ++i) {
        const int64_t row = q.first + i;
        const double lse = *book.lse.row(q.batch, row, head);
        const double query = std::abs(inputs.q.get(q.batch, row, head, 0));
        double d = 0;
        for (int64_t col = 0; col < c.dim_v; ++col) {
          d += inputs.d_o.get(q.batch, row, head, col) * book.o.row(q.batch, row, head)[col];
        }
        for (int64_t j = 0; j < k.used; ++j) {
          if (!visible(c, i, j, q.used, k.used)) continue;
          const int64_t key = k.first + j;
          const double number = inputs.k.get(k.batch, key, kv_head, 0);
          const double score =
              scale * static_cast<double>(c.dim) * inputs.q.get(q.batch, row, head, 0) * number;
          const Bounds p = bounds_of(std::exp(score - lse), off);
          double dp = 0, terms = 0;
          for (int64_t col = 0; col < c.dim_v; ++col) {
            const double g = inputs.d_o.get(q.batch, row, head, col);
            dp += g * inputs.v.get(k.batch, key, kv_head, col);
            terms += std::abs(g * inputs.v.get(k.batch, key, kv_head, col)) + std::abs(d);
            double& low = least.row(k.batch, key, kv_head)[col];
            double& high = most.row(k.batch, key, kv_head)[col];
            low += g > 0 ? p.least * g : p.most * g;
            high += g > 0 ? p.most * g : p.least * g;
          }
          const double ds = scale * p.most * (std::abs(dp - d) + unit_roundoff(c.dtype) * terms);
          for (int64_t col = 0; col < c.dim; ++col) {
            dq.row(q.batch, row, head)[col] += slack * ds * std::abs(number);
            dk.row(k.batch, key, kv_head)[col] += slack * ds * query;
          }
        }
      }
    }
  }
  const double largest = c.dtype == FA3_FLOAT16 ? 65504 : 3e38, smallest = underflow(c.dtype);
  const auto lies_between = [&](const char* what, const Values& got, const Values& low,
                                const Values& high) {
    for (size_t i = 0; i < got.numbers.size(); ++i) {
      const double x = got.numbers[i], from = low.numbers[i], to = high.numbers[i];
      const double allowed = (slack - 1) * std::max(std::abs(from), std::abs(to)) + 64 * smallest;
      if (std::max(std::abs(from), std::abs(to)) > largest && !std::isnan(x)) continue;
      if (x >= from - allowed && x <= to + allowed) continue;
      return failed(h, std::string(what) + " at element " + std::to_string(i) + ": got " +
                           std::to_string(x) + ", expected between " + std::to_string(from) +
                           " and " + std::to_string(to));
    }
    return testing::AssertionSuccess();
  };
  const auto negative = [](Values values) {
    for (double& number : values.numbers) number = -number;
    return values;
  };
  if (auto dv = lies_between("dv", run.dv.values(), least, most); !dv) return dv;
  if (auto r = lies_between("dq", run.dq.values(), negative(dq), dq); !r) return r;
  return lies_between("dk", run.dk.values(), negative(dk), dk);
}

// Around where engines change their arithmetic, and far beyond.
TEST_P(Huge, equal_scores_share_the_row) {
  for (double score : {1e3, 1e6, 8e6, 1e9, 1e15}) {
    for (Source source : {Source::scale, Source::operands}) {
      for (auto [rows, keys] : {std::pair{1, 1}, {1, 300}, {3, 333}, {130, 130}}) {
        Case c = dense_case(1, rows, keys, 2, 1, 64, 64);
        c.causal = rows == keys;
        c.num_splits = 1;
        expect_right({c, score, source, Leaders::all});
      }
    }
  }
}

TEST_P(Huge, the_largest_score_takes_the_row) {
  for (double score : {1e4, 1e6, 1e9, 1e15}) {
    for (Leaders leaders :
         {Leaders::first, Leaders::last, Leaders::middle, Leaders::two, Leaders::every_third}) {
      for (auto [rows, keys] : {std::pair{1, 300}, {70, 200}}) {
        Case c = dense_case(1, rows, keys, 1, 1, 64, 64);
        c.num_splits = 1;
        expect_right({c, score, score > 1e8 ? Source::scale : Source::operands, leaders});
      }
    }
  }
}

TEST_P(Huge, split_keys_packed_sequences_and_windows) {
  for (double score : {1e5, 1e9}) {
    for (Leaders leaders : {Leaders::all, Leaders::two}) {
      Case split = dense_case(1, 5, 600, 4, 1, 64, 64);
      split.num_splits = 3;
      Case packed = dense_case(2, 0, 0, 2, 1, 64, 64);
      packed.q = {.owned = {4, 70}, .spare_rows = 1};
      packed.k = {.owned = {300, 70}, .spare_rows = 2};
      packed.causal = true;
      packed.num_splits = 1;
      Case window = dense_case(1, 130, 130, 1, 1, 64, 64);
      window.left = 90;
      window.right = 5;
      window.num_splits = 1;
      for (const Case& c : {split, packed, window}) {
        // A merge by the LSE cannot tell how many keys share a part (docs/numerics.md).
        if (c.num_splits > 1 && engine().merges_by_lse) continue;
        expect_right({c, score, Source::scale, leaders});
      }
    }
  }
}

// Columns of unequal sizes, whose sums an engine that computes them twice may round in two ways.
void make_uneven(const Case& c, Tensor* tensor, const std::vector<Sequence>& sequences,
                 int64_t heads) {
  for (const Sequence& sequence : sequences) {
    for (int64_t row = sequence.first; row < sequence.first + sequence.used; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t col = 0; col < c.dim; ++col) {
          const double factor = std::ldexp(1 + static_cast<double>(37 * col % 64) / 64,
                                           -static_cast<int>(11 * col % 9));
          const double number = tensor->get(sequence.batch, row, head, col);
          tensor->set(sequence.batch, row, head, col, static_cast<float>(number * factor));
        }
      }
    }
  }
}

using Dims = std::vector<int64_t>;  // engines have kernels for them

TEST_P(Huge, sums_of_unequal_products) {
  for (double score : {1e6, 1e9, 1e12}) {
    for (int64_t dim : by_effort<Dims>({64, 192}, {64, 128, 192, 256}, {64, 128, 192, 256})) {
      for (int64_t rows : {3, 300}) {
        for (Leaders leaders : {Leaders::first, Leaders::middle, Leaders::last}) {
          HugeCase h{dense_case(1, rows, 530, 2, 1, dim, dim, FA3_BFLOAT16), score,
                     Source::operands, leaders};
          h.c.num_splits = 1;
          if (!can(h)) continue;
          Inputs inputs = inputs_of(&h);
          make_uneven(h.c, &inputs.q, {h.c.sequence_q(0)}, h.c.heads_q);
          make_uneven(h.c, &inputs.k, {h.c.sequence_k(0)}, h.c.heads_k);
          EXPECT_TRUE(forward_is_right(h, textbook_forward(h.c, inputs), forward(h.c, inputs)));
        }
      }
    }
  }
}

// Keys in pages, and rows of 8 columns and some.
TEST_P(Huge, keys_in_pages_and_odd_columns) {
  for (double score : {1e5, 1e9}) {
    const Dims all{64, 96, 100, 128, 192, 256};
    for (int64_t dim : by_effort<Dims>({100, 192}, all, all)) {
      for (int64_t rows : {3, 300}) {
        for (Leaders leaders : {Leaders::all, Leaders::two}) {
          HugeCase h{dense_case(2, rows, 530, 2, 1, dim, dim, FA3_BFLOAT16), score, Source::scale,
                     leaders};
          h.c.causal = rows > 3;
          h.c.num_splits = 1;
          const Inputs inputs = inputs_of(&h);
          const Textbook book = textbook_forward(h.c, inputs);
          if (does(h.c)) EXPECT_TRUE(forward_is_right(h, book, forward(h.c, inputs)));
          const Cached cached = in_cache(h.c, inputs, {.page_size = 16});
          const std::string reason = refusal(engine(), cached.c, cached.inputs);
          if (!reason.empty()) {
            leave_out(reason);
            continue;
          }
          EXPECT_TRUE(forward_is_right(h, book, forward(cached.c, cached.inputs))) << "in pages";
        }
      }
    }
  }
}

TEST_P(Huge, float8_keys) {
  for (double score : {1e4, 1e8, 1e12}) {
    for (Leaders leaders : {Leaders::all, Leaders::two}) {
      for (int64_t rows : {1, 100}) {
        HugeCase h{dense_case(1, rows, 500, 4, 2, 64, 64), score, Source::scale, leaders};
        h.c.num_splits = 1;
        Case whole = h.c, cache = h.c;
        whole.dtype = FA3_FLOAT8_E4M3;
        cache.dtype = FA3_BFLOAT16;
        cache.fp8.kv = true;
        for (const Case& c : {whole, cache}) {
          // Products of e4m3 have no step for larger scores (docs/numerics.md).
          if (engine().multiplies_e4m3 && c.dtype == FA3_FLOAT8_E4M3 && score > 4e7) continue;
          HugeCase mine = h;
          mine.c = c;
          if (!can(mine)) continue;
          const Inputs inputs = inputs_of(&mine);
          EXPECT_TRUE(forward_is_right(mine, inputs, forward(mine.c, inputs)));
        }
      }
    }
  }
}

// Beside scores of +-1e9 a sink of 1 counts nothing or all.
TEST_P(Huge, a_sink_beside_them) {
  Case c = dense_case(1, 70, 300, 2, 1, 64, 64);
  c.sink = true;
  c.num_splits = 1;
  for (double score : {1e5, 1e9}) {
    for (const Case& each : in_each_dtype(c)) {
      HugeCase mine{each, score, Source::scale, Leaders::all};
      if (!can(mine)) continue;
      const Inputs inputs = inputs_of(&mine);
      EXPECT_TRUE(forward_is_right(mine, inputs, forward(mine.c, inputs)));
    }
  }
}

// Whatever the scores are, a row's weights are at most 1 in the backward too.
TEST_P(Huge, no_weight_of_a_backward_is_more_than_one) {
  for (float scale : {1e5f, 1e7f, 1e9f, 1e30f}) {
    for (auto [rows, keys] : {std::pair{40, 40}, {130, 130}, {1, 100}}) {
      Case shape = dense_case(1, rows, keys, 2, 1, 32, 32);
      shape.scale = scale;
      for (const Case& c : in_each_dtype(shape)) {
        if (!does_backward(c) || (engine().rounds_scores && c.dtype == FA3_FLOAT16)) continue;
        Inputs inputs = make_inputs(c);
        const Runs run = both(c, inputs);
        std::vector<double> most(static_cast<size_t>(c.dim_v));
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t head = 0; head < 2; ++head) {
            for (int64_t col = 0; col < c.dim_v; ++col) {
              most[static_cast<size_t>(col)] += std::abs(inputs.d_o.get(0, row, head, col));
            }
          }
        }
        for (int64_t key = 0; key < keys; ++key) {
          for (int64_t col = 0; col < c.dim_v; ++col) {
            ASSERT_LE(std::abs(run.backward->dv.get(0, key, 0, col)),
                      most[static_cast<size_t>(col)] * (1 + 8 * unit_roundoff(c.dtype)))
                << engine().name << ", " << c << ", scale " << scale << ", key " << key;
          }
        }
        if (c.dtype == FA3_FLOAT16) continue;  // scale times anything is beyond it
        for (const Tensor* gradient : {&run.backward->dq, &run.backward->dk}) {
          for (double number : gradient->values().numbers) {
            ASSERT_TRUE(std::isfinite(number)) << engine().name << ", " << c << ", scale " << scale;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fa3::test
