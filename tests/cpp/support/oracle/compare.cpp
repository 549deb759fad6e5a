// SPDX-License-Identifier: Apache-2.0
#include "support/oracle/compare.h"

#include <algorithm>
#include <cmath>

#include "cli/call/error_rule.h"
#include "support/limits.h"

namespace fa3::test {
namespace {

struct RowAt {
  int64_t b, row, head;
};

// Visits every row of the tensor in order.
template <class Visitor>
void for_each_row(const Shape& shape, Visitor&& visit) {
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t head = 0; head < shape.heads; ++head) visit(RowAt{b, row, head});
    }
  }
}

// 2-norm of the finite numbers.
double norm(const double* row, int64_t dim) {
  double sum = 0;
  for (int64_t c = 0; c < dim; ++c) {
    if (std::isfinite(row[c])) sum += row[c] * row[c];
  }
  return std::sqrt(sum);
}

// 2-norm of the difference; infinite if a number is not finite on one side only.
double distance(const double* got, const double* want, int64_t dim) {
  double sum = 0;
  for (int64_t c = 0; c < dim; ++c) {
    if (std::isfinite(got[c]) != std::isfinite(want[c])) return kInfinity;
    if (!std::isfinite(got[c])) continue;
    sum += (got[c] - want[c]) * (got[c] - want[c]);
  }
  return std::sqrt(sum);
}

// Errors of a result, over the whole tensor and in its worst row relative to that row's size.
struct Errors {
  double total = 0;
  double worst_row = 0;
};

// How large the rows of the right answer are: the measure that row errors are relative to.
class RowSizes {
 public:
  RowSizes(const Values& want, const Tolerance& tolerance)
      : want_(want),
        terms_(tolerance.terms),
        underflow_(tolerance.underflow * std::sqrt(static_cast<double>(want.shape.dim))) {
    double squares = 0;
    for_each_row(want.shape, [&](RowAt at) { squares += of(at) * of(at); });
    total_ = std::sqrt(squares);
  }

  double total() const { return total_; }
  double of(RowAt at) const {
    const double size = norm(want_.row(at.b, at.row, at.head), want_.shape.dim);
    return terms_ == nullptr ? size : std::max(size, *terms_->row(at.b, at.row, at.head));
  }

  // Error over size; an error in a tensor of zeros is infinite.
  double relative(const Values& got, RowAt at) const {
    const double error =
        distance(got.row(at.b, at.row, at.head), want_.row(at.b, at.row, at.head), want_.shape.dim);
    return error <= underflow_ ? 0 : (error - underflow_) / of(at);
  }

  Errors errors(const Values& got) const {
    Errors errors;
    double squares = 0;
    for_each_row(want_.shape, [&](RowAt at) {
      const double relative_error = relative(got, at);
      errors.worst_row = std::max(errors.worst_row, relative_error);
      if (relative_error > 0) squares += std::pow(relative_error * of(at), 2);
    });
    errors.total = std::sqrt(squares);
    return errors;
  }

 private:
  const Values& want_;
  const Values* terms_;
  double underflow_;
  double total_ = 0;
};

testing::AssertionResult fails_at(const char* what, RowAt at, const Values& got, const Values& want,
                                  double error, double allowed) {
  const double* got_row = got.row(at.b, at.row, at.head);
  const double* want_row = want.row(at.b, at.row, at.head);
  int64_t worst = 0;
  for (int64_t c = 1; c < want.shape.dim; ++c) {
    if (distance(got_row + c, want_row + c, 1) > distance(got_row + worst, want_row + worst, 1)) {
      worst = c;
    }
  }
  return testing::AssertionFailure()
         << what << coordinates(at.b, at.row, at.head, worst) << ": got " << got_row[worst]
         << ", expected " << want_row[worst] << "; the row's relative error is " << error
         << ", allowed " << allowed;
}

}  // namespace

double underflow(fa3_dtype dtype) {
  return dtype == FA3_FLOAT16 ? 0x1p-24 : 0x1p-100;
}

testing::AssertionResult agrees(const char* what, const Values& got, const Values& want,
                                const Values* baseline, const Tolerance& tolerance) {
  if (!(got.shape == want.shape)) return testing::AssertionFailure() << what << ": shape differs";
  const RowSizes sizes(want, tolerance);
  const Errors base = baseline != nullptr ? sizes.errors(*baseline) : Errors{};
  const double allowed_row = allowed_error(base.worst_row, tolerance.roundoff);
  if (!std::isfinite(allowed_row)) {
    return testing::AssertionFailure() << what << ": the baseline itself is infinitely off";
  }
  testing::AssertionResult result = testing::AssertionSuccess();
  for_each_row(want.shape, [&](RowAt at) {
    const double error = sizes.relative(got, at);
    if (result && !(error <= allowed_row)) {
      result = fails_at(what, at, got, want, error, allowed_row);
    }
  });
  if (!result) return result;
  const double error = sizes.errors(got).total;
  const double allowed = allowed_error(base.total, tolerance.roundoff * sizes.total());
  if (error <= allowed) return result;
  return testing::AssertionFailure() << what << ": the whole tensor's error is " << error
                                     << ", allowed " << allowed << ", its size " << sizes.total();
}

testing::AssertionResult lse_agrees(const Values& got, const Textbook& want,
                                    double score_roundoff) {
  const double allowed = allowed_lse_error(want.largest_score, score_roundoff);
  const auto right = [&](double got_lse, double want_lse) {
    if (std::isnan(want_lse)) return !std::isfinite(got_lse);
    return got_lse == want_lse || std::abs(got_lse - want_lse) <= allowed;
  };
  testing::AssertionResult result = testing::AssertionSuccess();
  for_each_row(want.lse.shape, [&](RowAt at) {
    const double got_lse = *got.row(at.b, at.row, at.head);
    const double want_lse = *want.lse.row(at.b, at.row, at.head);
    if (!result || right(got_lse, want_lse)) return;
    result = testing::AssertionFailure()
             << "lse" << coordinates(at.b, at.row, at.head, 0) << ": got " << got_lse
             << ", expected " << want_lse << ", allowed difference " << allowed;
  });
  return result;
}

testing::AssertionResult max_logit_agrees(const Values& got, const Textbook& want,
                                          double score_roundoff) {
  const double allowed = allowed_lse_error(want.largest_logit, score_roundoff);
  for (size_t i = 0; i < want.max_logit.numbers.size(); ++i) {
    const double is = got.numbers[i], should = want.max_logit.numbers[i];
    const bool right =
        std::isnan(should) ? std::isnan(is) : is == should || std::abs(is - should) <= allowed;
    if (right) continue;
    return testing::AssertionFailure()
           << "max_logit of sequence and head " << i << ": got " << is << ", expected " << should
           << ", allowed difference " << allowed;
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult bits_equal(const char* what, const Tensor& got, const Tensor& want) {
  const std::vector<uint32_t> got_bits = got.element_bits();
  const std::vector<uint32_t> want_bits = want.element_bits();
  const auto [at, other] =
      std::mismatch(got_bits.begin(), got_bits.end(), want_bits.begin(), want_bits.end());
  if (at == got_bits.end() && other == want_bits.end()) return testing::AssertionSuccess();
  const Shape& shape = got.shape();
  const int64_t i = at - got_bits.begin();
  const int64_t c = i % shape.dim, head = i / shape.dim % shape.heads;
  const int64_t row = i / shape.dim / shape.heads % shape.rows;
  const int64_t b = i / shape.dim / shape.heads / shape.rows;
  return testing::AssertionFailure()
         << what << coordinates(b, row, head, c) << ": bits differ, got "
         << got.get(b, row, head, c) << ", expected " << want.get(b, row, head, c);
}

}  // namespace fa3::test
