// SPDX-License-Identifier: Apache-2.0
//
// The quantizer from its formulas (docs/numerics.md), a (sequence, head) at a time. It shares
// neither loops nor roundings with quantize.cpp, which must give the same bits.
#include <cmath>
#include <vector>

#include "core/float_environment.h"
#include "engine/cpu/caches/caches.h"
#include "engine/cpu/rows.h"

namespace fa3::cpu {
namespace {

using Vector = std::vector<float>;

// The number of e4m3 that is nearest to x, of two the one with an even code; found by looking.
Float8E4M3 nearest(float x) {
  if (!std::isfinite(x)) return {0x7f};
  uint8_t best = 0;
  double least = HUGE_VAL;
  for (uint8_t code = 0; code < 0x7f; ++code) {
    const double distance = std::abs(double{to_float(Float8E4M3{code})} - std::abs(double{x}));
    if (distance < least || (distance == least && code % 2 == 0)) {
      best = code;
      least = distance;
    }
  }
  return {static_cast<uint8_t>(std::signbit(x) ? best | 0x80 : best)};
}

// H_1 x = x,  H_2n (a, b) = (H_n a + H_n b, H_n a - H_n b).
Vector hadamard(const Vector& x) {
  if (x.size() == 1) return x;
  const auto middle = x.begin() + static_cast<int64_t>(x.size() / 2);
  const Vector a = hadamard({x.begin(), middle}), b = hadamard({middle, x.end()});
  Vector result;
  for (size_t i = 0; i < a.size(); ++i) result.push_back(a[i] + b[i]);
  for (size_t i = 0; i < a.size(); ++i) result.push_back(a[i] - b[i]);
  return result;
}

// Number c of a row of y.
Float8E4M3* number_at(const QuantizeProblem& p, int64_t b, int64_t row, int64_t head, int64_t c) {
  return p.y_transposed.on ? p.y_transposed.at<Float8E4M3>(p.y, b, row, head, c)
                           : p.y.at<Float8E4M3>(b, row, head) + c;
}

struct Head {
  const QuantizeProblem& p;
  int64_t b, head;
  Rows rows;

  Head(const QuantizeProblem& problem, int64_t sequence, int64_t h)
      : p(problem), b(sequence), head(h), rows(problem.lengths.rows_of(sequence)) {}

  // Step 1.
  Vector rotated(int64_t row) const {
    Vector x(static_cast<size_t>(p.head_dim));
    visit_dtype(p.x.dtype, [&]<class T>(T) {
      load_row(p.x.at<T>(b, rows.begin + row, head), p.head_dim, x.data());
    });
    Vector y = x;
    for (int64_t pair = 0; pair < p.rotary.dim / 2; ++pair) {
      const auto i = static_cast<size_t>(p.rotary.interleaved ? 2 * pair : pair);
      const auto j = static_cast<size_t>(p.rotary.interleaved ? i + 1 : pair + p.rotary.dim / 2);
      const float cos = p.rotary.cos[row * p.rotary.cos_stride + pair];
      const float sin = p.rotary.sin[row * p.rotary.sin_stride + pair];
      y[i] = x[i] * cos - x[j] * sin;
      y[j] = x[j] * cos + x[i] * sin;
    }
    return y;
  }

  // Step 2.
  Vector mean() const {
    Vector sum(static_cast<size_t>(p.head_dim));
    for (int64_t first = 0; first < rows.used; first += FA3_DESCALE_ROWS) {
      Vector block(sum.size());
      for (int64_t r = first; r < std::min(first + FA3_DESCALE_ROWS, rows.used); ++r) {
        const Vector x = rotated(r);
        for (size_t c = 0; c < sum.size(); ++c) block[c] = block[c] + x[c];
      }
      for (size_t c = 0; c < sum.size(); ++c) sum[c] = sum[c] + block[c];
    }
    for (float& x : sum) {
      if (rows.used > 0) x = x / static_cast<float>(rows.used);
      if (!std::isfinite(x)) x = 0;
    }
    return sum;
  }

  // Step 3.
  Vector mixed(const Vector& x) const {
    if (!p.hadamard) return x;
    Vector result;
    const int64_t block = hadamard_block(p.head_dim);
    for (int64_t first = 0; first < p.head_dim; first += block) {
      Vector part;
      for (int64_t c = first; c < first + block; ++c) {
        const float number = x[static_cast<size_t>(c)];
        part.push_back(is_negated(p.seed, c) ? -number : number);
      }
      for (float y : hadamard(part)) result.push_back(y * hadamard_factor(block));
    }
    return result;
  }

  // All rows, transformed; writes the mean.
  std::vector<Vector> transformed() const {
    const Vector center = p.centred ? mean() : Vector();
    if (p.centred) {
      const Vector out = mixed(center);
      std::copy(out.begin(), out.end(), p.mean.at(b, head));
    }
    std::vector<Vector> result;
    for (int64_t r = 0; r < rows.used; ++r) {
      Vector x = rotated(r);
      for (size_t c = 0; c < center.size(); ++c) x[c] = x[c] - center[c];
      result.push_back(mixed(x));
    }
    return result;
  }

  void write(int64_t row, const Vector& x, float scale) const {
    for (size_t c = 0; c < x.size(); ++c) {
      *number_at(p, b, rows.begin + row, head, int64_t(c)) = nearest(x[c] * (1 / scale));
    }
  }
};

// Raises `scale` to what the numbers of x ask for.
void raise(const Vector& x, float* scale) {
  for (float number : x) {
    if (std::isfinite(number)) *scale = std::max(*scale, std::abs(number) / 448);
  }
}

template <class Visitor>
void for_each_head(const QuantizeProblem& p, Visitor&& visit) {
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t head = 0; head < p.heads; ++head) visit(Head(p, b, head));
  }
}

}  // namespace

Status plan_reference_quantize(const QuantizeProblem&, Plan* plan) {
  *plan = {.engine = "reference",
           .kernel = "quantizer from its formulas",
           .num_tasks = 1,
           .why = "The oracle: one number at a time."};
  return {};
}

Status run_reference_quantize(const QuantizeProblem& p, const Plan&, void*, void*) {
  const DefaultFloatEnvironment environment;
  const int64_t sequence = p.lengths.packed() ? p.lengths.total : p.lengths.max;
  for (int64_t row = 0; row < (p.y_transposed.on ? transposed_places(sequence) : sequence); ++row) {
    for (int64_t i = 0; i < (p.lengths.packed() ? 1 : p.batch) * p.heads; ++i) {
      for (int64_t c = 0; c < p.head_dim; ++c) {
        *number_at(p, i / p.heads, row, i % p.heads, c) = {};
      }
    }
  }
  const int64_t blocks = p.descale.scaling == Scaling::per_block ? p.num_descale_blocks : 1;
  for_each_head(p, [&](const Head& at) {
    for (int64_t i = 0; i < blocks; ++i) *p.descale.at(at.b, at.head, i) = kSmallestScale;
  });
  if (p.batch * p.heads == 0 && p.descale.scaling == Scaling::per_tensor) {
    *p.descale.data = kSmallestScale;
  }
  const auto scale_at = [&](const Head& at, size_t row) {
    const bool per_block = p.descale.scaling == Scaling::per_block;
    const auto block = static_cast<int64_t>(row) / FA3_DESCALE_ROWS;
    return p.descale.at(at.b, at.head, per_block ? block : 0);
  };
  for_each_head(p, [&](const Head& at) {
    const std::vector<Vector> rows = at.transformed();
    for (size_t r = 0; r < rows.size(); ++r) raise(rows[r], scale_at(at, r));
  });
  for_each_head(p, [&](const Head& at) {
    const std::vector<Vector> rows = at.transformed();
    for (size_t r = 0; r < rows.size(); ++r) {
      at.write(static_cast<int64_t>(r), rows[r], *scale_at(at, r));
    }
  });
  return {};
}

}  // namespace fa3::cpu
