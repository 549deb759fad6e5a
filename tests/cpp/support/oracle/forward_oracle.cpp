// SPDX-License-Identifier: Apache-2.0
#include "support/oracle/forward_oracle.h"

#include <algorithm>
#include <cmath>

#include "support/limits.h"

namespace fa3::test {
namespace {

Rounding rounding_of(fa3_dtype dtype) {
  if (dtype == FA3_FLOAT16) return {.digits = 11, .lowest = -24, .limit = 65536};
  if (dtype == FA3_BFLOAT16) return {.digits = 8, .lowest = -133, .limit = INFINITY};
  return {};
}

Dropout dropout_of(const Case& c) {
  const auto& origin = c.dropout_origin;
  return {.threshold = dropout_threshold(c.dropout_p),
          .seed = c.dropout_seed,
          .offset = c.dropout_offset,
          .origin = {.sequence = static_cast<uint32_t>(origin.sequence),
                     .head = static_cast<uint32_t>(origin.head),
                     .query_word = dropout_query_word(origin.query),
                     .key_word = dropout_key_word(origin.key)}};
}

// Relative, of what is finite; infinite if a number is finite on one side only.
double distance(const Values& a, const Values& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.numbers.size(); ++i) {
    if (std::isfinite(a.numbers[i]) != std::isfinite(b.numbers[i])) return kInfinity;
    if (!std::isfinite(a.numbers[i])) continue;
    difference += std::pow(a.numbers[i] - b.numbers[i], 2);
    size += std::pow(b.numbers[i], 2);
  }
  return difference == 0 ? 0 : std::sqrt(difference / size);
}

struct OneThread {
  int rank() const { return 0; }
  int size() const { return 1; }
  double sum(double x) const { return x; }
  double most(double x) const { return x; }
  void sync() const {}
};

// Adds the keys and values of a head; the operands' places in `at`.
void add_keys(const Case& c, const Inputs& in, Sequence keys, int64_t head, OracleOperands* to,
              HeadOperands* at) {
  at->kt = static_cast<int64_t>(to->kt.size());
  at->v = static_cast<int64_t>(to->v.size());
  at->norms = static_cast<int64_t>(to->v_norms.size());
  for (int64_t i = 0; i < c.dim; ++i) {
    for (int64_t j = 0; j < keys.used; ++j) {
      to->kt.push_back(double{in.k.get(keys.batch, keys.first + j, head, i)});
    }
  }
  for (int64_t j = 0; j < keys.used; ++j) {
    double squares = 0;
    for (int64_t i = 0; i < c.dim_v; ++i) {
      const double v = in.v.get(keys.batch, keys.first + j, head, i);
      to->v.push_back(v);
      squares += v * v;
    }
    to->v_norms.push_back(squares);
  }
}

void add_queries(const Case& c, const Inputs& in, Sequence queries, int64_t head,
                 OracleOperands* to, HeadOperands* at) {
  at->q = static_cast<int64_t>(to->q.size());
  at->o = to->o_size;
  at->lse = to->rows;
  for (int64_t i = 0; i < queries.used; ++i) {
    for (int64_t col = 0; col < c.dim; ++col) {
      to->q.push_back(double{in.q.get(queries.batch, queries.first + i, head, col)});
    }
  }
  to->o_size += queries.used * c.dim_v;
  to->rows += queries.used;
}

}  // namespace

bool oracle_does(const Case& c) {
  return !c.mask.on && !c.has_float8();
}

OracleOperands oracle_operands(const Case& c, const Inputs& inputs) {
  OracleOperands operands;
  for (int64_t b = 0; b < c.batch; ++b) {
    const Sequence queries = c.sequence_q(b), keys = c.sequence_k(b);
    operands.most_queries = std::max(operands.most_queries, static_cast<int>(queries.used));
    operands.most_keys = std::max(operands.most_keys, static_cast<int>(keys.used));
    for (int64_t kv_head = 0; kv_head < c.heads_k; ++kv_head) {
      HeadOperands at{.sequence = static_cast<int>(b),
                      .queries = static_cast<int>(queries.used),
                      .keys = static_cast<int>(keys.used)};
      add_keys(c, inputs, keys, kv_head, &operands, &at);
      for (int64_t h = kv_head * c.group(); h < (kv_head + 1) * c.group(); ++h) {
        at.head = static_cast<int>(h);
        add_queries(c, inputs, queries, h, &operands, &at);
        operands.heads.push_back(at);
      }
    }
  }
  for (int64_t h = 0; c.sink && h < c.heads_q; ++h) {
    operands.sink.push_back(inputs.sink.get(0, 0, h, 0));
  }
  return operands;
}

ForwardCall oracle_call(const Case& c) {
  return {.dim = static_cast<int>(c.dim),
          .dim_v = static_cast<int>(c.dim_v),
          .scale = c.effective_scale(),
          .softcap = double{c.softcap},
          .causal = c.causal,
          .left = c.left,
          .right = c.right,
          .shift = c.shift,
          .chunk = c.chunk,
          .dropout = dropout_of(c),
          .stored = rounding_of(c.dtype),
          .output = rounding_of(c.o_dtype())};
}

Truth oracle_truth(const Case& c, const OracleOperands& operands, const OracleResults& results) {
  Truth truth{.book = {.o = Values(c.o_shape()), .lse = Values(c.lse_shape())},
              .baseline = {.o = Tensor(c.o_shape(), c.o_dtype()), .lse = {}, .problem = ""}};
  truth.book.o_terms = Values(c.lse_shape());
  std::fill(truth.book.lse.numbers.begin(), truth.book.lse.numbers.end(), -kInfinity);
  for (int64_t b = 0; b < c.o_shape().batch; ++b) {
    for (int64_t row = 0; row < c.o_shape().rows; ++row) truth.baseline.o.fill_row(b, row, 0);
  }
  for (const HeadOperands& at : operands.heads) {
    const Sequence queries = c.sequence_q(at.sequence);
    for (int64_t i = 0; i < at.queries; ++i) {
      const auto number = static_cast<size_t>(at.lse + i);
      const int64_t row = queries.first + i;
      *truth.book.lse.row(queries.batch, row, at.head) = results.lse[number];
      *truth.book.o_terms.row(queries.batch, row, at.head) = results.terms[number];
      truth.book.largest_score = std::max(truth.book.largest_score, results.largest[number]);
      const auto o = static_cast<size_t>(at.o + i * c.dim_v);
      std::copy_n(results.o.data() + o, c.dim_v, truth.book.o.row(queries.batch, row, at.head));
      for (int64_t col = 0; col < c.dim_v; ++col) {
        truth.baseline.o.set(queries.batch, row, at.head, col,
                             static_cast<float>(results.base_o[o + static_cast<size_t>(col)]));
      }
    }
  }
  return truth;
}

testing::AssertionResult same_truth(const Truth& got, const Truth& want) {
  const struct {
    const char* name;
    const Values &got, &want;
  } values[] = {{"o", got.book.o, want.book.o},
                {"lse", got.book.lse, want.book.lse},
                {"terms", got.book.o_terms, want.book.o_terms}};
  for (const auto& one : values) {
    const double off = distance(one.got, one.want);
    if (!(off <= 1e-12)) return testing::AssertionFailure() << one.name << ": off by " << off;
  }
  if (std::abs(got.book.largest_score - want.book.largest_score) >
      1e-12 * want.book.largest_score) {
    return testing::AssertionFailure() << "largest score: " << got.book.largest_score
                                       << ", expected " << want.book.largest_score;
  }
  const Values mine = got.baseline.o.values(), theirs = want.baseline.o.values();
  if (auto same = agrees("baseline", mine, want.book.o, &theirs, {.roundoff = 0x1p-20}); !same) {
    return same;
  }
  return agrees("baseline", theirs, want.book.o, &mine, {.roundoff = 0x1p-20});
}

Truth forward_truth_on_host(const Case& c, const Inputs& inputs) {
  const OracleOperands operands = oracle_operands(c, inputs);
  const auto rows = static_cast<size_t>(operands.rows), o = static_cast<size_t>(operands.o_size);
  OracleResults results{.o = std::vector<double>(o),
                        .lse = std::vector<double>(rows),
                        .terms = std::vector<double>(rows),
                        .largest = std::vector<double>(rows),
                        .base_o = std::vector<double>(o)};
  std::vector<double> weights(static_cast<size_t>(operands.most_keys));
  std::vector<float> stored(weights.size());
  ForwardCall call = oracle_call(c);
  call.q = operands.q.data();
  call.kt = operands.kt.data();
  call.v = operands.v.data();
  call.v_norms = operands.v_norms.data();
  call.sink = c.sink ? operands.sink.data() : nullptr;
  call.o = results.o.data();
  call.lse = results.lse.data();
  call.terms = results.terms.data();
  call.largest = results.largest.data();
  call.base_o = results.base_o.data();
  for (const HeadOperands& at : operands.heads) {
    for (int i = 0; i < at.queries; ++i) {
      attend_row(OneThread{}, call, at, i, {weights.data(), stored.data()});
    }
  }
  return oracle_truth(c, operands, results);
}

}  // namespace fa3::test
