// SPDX-License-Identifier: Apache-2.0
#include "cli/call/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/call/error_rule.h"

namespace fa3::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// NaN agrees with NaN and an infinity with itself; anything else that is not finite is infinitely
// off.
double difference(double got, double expected) {
  if (got == expected || (std::isnan(got) && std::isnan(expected))) return 0;
  const double off = std::abs(got - expected);
  return std::isfinite(off) ? off : kInfinity;
}

double ratio(double error, double norm) {
  if (error == 0) return 0;
  return norm > 0 ? error / norm : kInfinity;
}

double largest_row_norm(const HostTensor& tensor) {
  const int64_t dim = tensor.shape().back();
  double largest = 0;
  for (int64_t row = 0; row < tensor.elements() / std::max<int64_t>(dim, 1); ++row) {
    double sum = 0;
    for (int64_t c = 0; c < dim; ++c) {
      const double x = element(tensor.data(), tensor.dtype(), row * dim + c);
      sum += x * x;
    }
    largest = std::max(largest, sum);
  }
  return std::sqrt(largest);
}

}  // namespace

Error error_of(const HostTensor& got, const HostTensor& expected) {
  const int64_t dim = std::max<int64_t>(expected.shape().back(), 1);
  const int64_t rows = expected.elements() / dim;
  if (rows == 0) return {};
  std::vector<double> row_error(static_cast<size_t>(rows)), row_norm(row_error.size());
  double error_sum = 0, norm_sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    double error = 0, norm = 0;
    for (int64_t i = row * dim; i < (row + 1) * dim; ++i) {
      const double value = element(expected.data(), expected.dtype(), i);
      const double off = difference(element(got.data(), got.dtype(), i), value);
      error += off * off;
      if (std::isfinite(value)) norm += value * value;
    }
    row_error[static_cast<size_t>(row)] = std::sqrt(error);
    row_norm[static_cast<size_t>(row)] = std::sqrt(norm);
    error_sum += error;
    norm_sum += norm;
  }
  const double mean_norm = std::sqrt(norm_sum / static_cast<double>(rows));
  Error result{.overall = ratio(std::sqrt(error_sum), std::sqrt(norm_sum))};
  for (size_t row = 0; row < row_error.size(); ++row) {
    result.row = std::max(result.row, ratio(row_error[row], std::max(row_norm[row], mean_norm)));
  }
  return result;
}

double max_abs_error(const HostTensor& got, const HostTensor& expected) {
  double largest = 0;
  for (int64_t i = 0; i < expected.elements(); ++i) {
    largest = std::max(largest, difference(element(got.data(), got.dtype(), i),
                                           element(expected.data(), expected.dtype(), i)));
  }
  return largest;
}

Error allowed_error(const Error& baseline, double roundoff) {
  return {.overall = fa3::allowed_error(baseline.overall, roundoff),
          .row = fa3::allowed_error(baseline.row, roundoff)};
}

double largest_score(const Operands& operands, const fa3_options& options) {
  const double scale = options.scale == FA3_SCALE_AUTO
                           ? 1 / std::sqrt(static_cast<double>(operands.q.shape().back()))
                           : double{options.scale};
  const double score = scale * largest_row_norm(operands.q) * largest_row_norm(operands.k);
  return options.softcap > 0 ? std::min(score, double{options.softcap}) : score;
}

}  // namespace fa3::cli
