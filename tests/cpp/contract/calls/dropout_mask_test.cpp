// SPDX-License-Identifier: Apache-2.0
//
// The mask that an engine drops by, read bit by bit out of its results, is fa3_dropout_mask()'s.
// All scores are 0, so that a query weights its visible keys alike. A column of an operand has
// powers of two for four rows and 0 for the others; in the result it sums those of what is kept:
// keys in O and dQ, queries in dV and dK.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "contract/fixture.h"

namespace fa3::test::dropout_mask {
namespace {

class DropoutMask : public EngineTest {};
FA3_FOR_EVERY_ENGINE(DropoutMask);

constexpr int64_t kCoded = 4;  // rows of a column: 16 sums, which bf16 tells apart

struct Form {
  int64_t seqlen_q, seqlen_k, heads_q = 2, heads_k = 1;
  bool causal = false;
  int64_t left = -1, right = -1;
  bool packed = false, has_origin = false;
  float p = 0.3f;
};
constexpr Form kForms[] = {
    {200, 331},
    {1, 530, 4, 1},
    {70, 130, 2, 2, true},
    {331, 200, 3, 1, true},
    {.seqlen_q = 200, .seqlen_k = 331, .left = 90, .right = 20},
    {.seqlen_q = 130, .seqlen_k = 193, .packed = true, .p = 0.8f},
    {.seqlen_q = 70, .seqlen_k = 200, .causal = true, .packed = true, .has_origin = true},
    {.seqlen_q = 97, .seqlen_k = 150, .heads_q = 4, .heads_k = 2, .has_origin = true, .p = 0.5f},
};

Case case_of(const Form& form, int64_t dim) {
  Case c = dense_case(2, form.seqlen_q, form.seqlen_k, form.heads_q, form.heads_k, dim, dim);
  if (form.packed) {
    const auto owned_q = static_cast<int32_t>(form.seqlen_q);
    const auto owned_k = static_cast<int32_t>(form.seqlen_k);
    c.q = {.owned = {owned_q, 3}, .spare_rows = 4, .used = {owned_q - 5, 3}};
    c.k = {.owned = {owned_k, 66}, .spare_rows = 2, .used = {owned_k, 61}};
  }
  c.causal = form.causal;
  c.left = form.left;
  c.right = form.right;
  c.scale = 1;
  c.dropout_p = form.p;
  c.dropout_seed = 0x123456789abcdef0;
  c.dropout_offset = 77;
  if (form.has_origin) c.dropout_origin = {.sequence = 2, .head = 3, .query = 48, .key = 192};
  return c;
}

// One head of a sequence: what is visible and what is kept, by query and key.
class Head {
 public:
  Head(const Case& c, int64_t b, int64_t head)
      : queries(c.sequence_q(b)),
        keys(c.sequence_k(b)),
        head(head),
        kv_head(head / c.group()),
        factor_(1 / (1 - std::round(c.dropout_p * 65536.0) / 65536)) {
    const std::vector<double> factors = dropout_factors(c, b, head, queries.used, keys.used);
    for (int64_t i = 0; i < queries.used; ++i) {
      double seen = 0, kept = 0;
      for (int64_t j = 0; j < keys.used; ++j) {
        visible_.push_back(visible(c, i, j, queries.used, keys.used));
        kept_.push_back(visible_.back() && factors[visible_.size() - 1] > 0);
        seen += visible_.back();
        kept += kept_.back();
      }
      seen_.push_back(seen);
      delta_.push_back(seen > 0 ? factor_ * kept / seen : 0);  // of values that are 1
    }
  }

  bool sees(int64_t i, int64_t j) const { return visible_[at(i, j)]; }
  bool keeps(int64_t i, int64_t j) const { return kept_[at(i, j)]; }
  double seen(int64_t i) const { return seen_[static_cast<size_t>(i)]; }
  double delta(int64_t i) const { return delta_[static_cast<size_t>(i)]; }
  double factor() const { return factor_; }  // of what is kept

  Sequence queries, keys;
  int64_t head, kv_head;

 private:
  size_t at(int64_t i, int64_t j) const { return static_cast<size_t>(i * keys.used + j); }
  double factor_;
  std::vector<bool> visible_, kept_;
  std::vector<double> seen_, delta_;
};

std::vector<Head> heads_of(const Case& c) {
  std::vector<Head> heads;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads_q; ++h) heads.emplace_back(c, b, h);
  }
  return heads;
}

// Where rows are coded: from `first` on, four a column, from a column on.
struct Code {
  int64_t first, column, columns;

  int64_t end() const { return first + columns * kCoded; }
  bool has(int64_t row) const { return row >= first && row < end(); }
  int64_t column_of(int64_t row) const { return column + (row - first) / kCoded; }
  double power(int64_t row) const { return std::exp2((row - first) % kCoded); }
};

// What the results said, beside what they should have.
struct Reading {
  int64_t read = 0, wrong = 0, unclear = 0;

  // `sum` of powers of two of what is kept of rows [first, first + kCoded), `count` in all.
  template <class Sees, class Keeps>
  void compare(double sum, int64_t first, int64_t count, const Sees& sees, const Keeps& keeps) {
    const double nearest = std::round(sum);
    unclear += !(std::abs(sum - nearest) < 0.4);
    const auto bits = static_cast<int64_t>(nearest);
    for (int64_t n = 0; n < kCoded && first + n < count; ++n) {
      if (!sees(first + n)) continue;
      ++read;
      wrong += (bits >> n & 1) != int64_t{keeps(first + n)};
    }
  }
};

testing::AssertionResult right(const Reading& reading, const char* what) {
  if (reading.read > 0 && reading.wrong == 0 && reading.unclear == 0) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << what << ": of " << reading.read << " bits " << reading.wrong << " are wrong, "
         << reading.unclear << " sums are none of bits";
}

void fill(Tensor* tensor, float value) {
  const Shape& shape = tensor->shape();
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t row = 0; row < shape.rows; ++row) tensor->fill_row(b, row, value);
  }
}

// 1 in the first column of every row.
void fill_first(Tensor* tensor) {
  fill(tensor, 0);
  const Shape& shape = tensor->shape();
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t h = 0; h < shape.heads; ++h) tensor->set(b, row, h, 0, 1);
    }
  }
}

void code_keys(const std::vector<Head>& heads, const Code& code, Tensor* tensor) {
  fill(tensor, 0);
  for (const Head& head : heads) {
    for (int64_t j = code.first; j < std::min(code.end(), head.keys.used); ++j) {
      tensor->set(head.keys.batch, head.keys.first + j, head.kv_head, code.column_of(j),
                  static_cast<float>(code.power(j)));
    }
  }
}

// Each head of a group has columns of its own; times what divides the query's weights.
Code code_of(const Case& c, const Head& head, int64_t first) {
  const int64_t columns = (c.dim - 1) / c.group();
  return {first, 1 + head.head % c.group() * columns, columns};
}
void code_queries(const Case& c, const std::vector<Head>& heads, int64_t first, Tensor* tensor) {
  for (const Head& head : heads) {
    const Code code = code_of(c, head, first);
    for (int64_t i = first; i < std::min(code.end(), head.queries.used); ++i) {
      tensor->set(head.queries.batch, head.queries.first + i, head.head, code.column_of(i),
                  static_cast<float>(code.power(i) * head.seen(i)));
    }
  }
}

// O, or dQ, whose terms have delta beside the mask.
void read_keys(const std::vector<Head>& heads, const Code& code, const Tensor& result,
               bool is_gradient, Reading* reading) {
  for (const Head& head : heads) {
    for (int64_t i = 0; i < head.queries.used; ++i) {
      for (int64_t j = code.first; j < std::min(code.end(), head.keys.used); j += kCoded) {
        double sum = head.seen(i) * double{result.get(head.queries.batch, head.queries.first + i,
                                                      head.head, code.column_of(j))};
        for (int64_t n = j; is_gradient && n < std::min(j + kCoded, head.keys.used); ++n) {
          if (head.sees(i, n)) sum += head.delta(i) * code.power(n);
        }
        reading->compare(
            sum / head.factor(), j, head.keys.used, [&](int64_t key) { return head.sees(i, key); },
            [&](int64_t key) { return head.keeps(i, key); });
      }
    }
  }
}

// dV, or dK.
void read_queries(const Case& c, const std::vector<Head>& heads, int64_t first,
                  const Tensor& result, bool is_dk, Reading* reading) {
  for (const Head& head : heads) {
    const Code code = code_of(c, head, first);
    for (int64_t j = 0; j < head.keys.used; ++j) {
      for (int64_t i = first; i < std::min(code.end(), head.queries.used); i += kCoded) {
        double sum =
            result.get(head.keys.batch, head.keys.first + j, head.kv_head, code.column_of(i));
        for (int64_t n = i; is_dk && n < std::min(i + kCoded, head.queries.used); ++n) {
          if (head.sees(n, j)) sum += head.delta(n) * code.power(n);
        }
        reading->compare(
            sum / head.factor(), i, head.queries.used,
            [&](int64_t query) { return head.sees(query, j); },
            [&](int64_t query) { return head.keeps(query, j); });
      }
    }
  }
}

int64_t longest(const std::vector<Head>& heads, Sequence Head::*side) {
  int64_t most = 0;
  for (const Head& head : heads) most = std::max(most, (head.*side).used);
  return most;
}

Inputs zeros(const Case& c) {
  Inputs inputs = make_inputs(c);
  for (Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.d_o}) fill(tensor, 0);
  return inputs;
}

TEST_P(DropoutMask, has_the_bits_of_every_engine) {
  const std::vector<int64_t> dims{24, 64, 128, 256};
  for (const int64_t dim : by_effort({64}, dims, dims)) {
    for (const Form& form : kForms) {
      for (const Case& c : in_each_dtype(case_of(form, dim))) {
        const std::vector<Head> heads = heads_of(c);
        Reading of_o, of_dq, of_dk, of_dv;
        for (int64_t first = 0; first < longest(heads, &Head::keys); first += dim * kCoded) {
          const Code code{first, 0, dim};
          Inputs forward_of = zeros(c), backward_of = zeros(c);
          code_keys(heads, code, &forward_of.v);
          read_keys(heads, code, forward(c, forward_of).o, false, &of_o);
          if (!does_backward(c)) continue;
          code_keys(heads, code, &backward_of.k);
          fill_first(&backward_of.v);
          fill_first(&backward_of.d_o);
          read_keys(heads, code, both(c, backward_of).backward->dq, true, &of_dq);
        }
        EXPECT_TRUE(right(of_o, "O")) << c;
        if (!does_backward(c)) continue;
        EXPECT_TRUE(right(of_dq, "dQ")) << c;
        const int64_t step = code_of(c, heads[0], 0).columns * kCoded;
        for (int64_t first = 0; first < longest(heads, &Head::queries); first += step) {
          Inputs of = zeros(c);
          fill_first(&of.v);
          fill_first(&of.d_o);
          code_queries(c, heads, first, &of.d_o);
          code_queries(c, heads, first, &of.q);
          const Runs runs = both(c, of);
          read_queries(c, heads, first, runs.backward->dv, false, &of_dv);
          read_queries(c, heads, first, runs.backward->dk, true, &of_dk);
        }
        EXPECT_TRUE(right(of_dv, "dV")) << c;
        EXPECT_TRUE(right(of_dk, "dK")) << c;
      }
    }
  }
}

// The reading itself: another seed's mask has other bits, those of both kinds.
TEST_P(DropoutMask, of_another_seed_is_noticed) {
  Case c = case_of(kForms[0], 64);
  c.dtype = FA3_BFLOAT16;
  if (!does(c)) return;
  const Code code{0, 0, 64};
  Inputs of = zeros(c);
  code_keys(heads_of(c), code, &of.v);
  const ForwardRun run = forward(c, of);
  ++c.dropout_seed;
  Reading reading;
  read_keys(heads_of(c), code, run.o, false, &reading);
  const double share = 2 * 0.3 * 0.7;  // of bits that differ
  EXPECT_NEAR(static_cast<double>(reading.wrong) / static_cast<double>(reading.read), share, 0.01);
  EXPECT_EQ(reading.unclear, 0);
}

}  // namespace
}  // namespace fa3::test::dropout_mask
