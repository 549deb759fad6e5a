// SPDX-License-Identifier: Apache-2.0
#include "support/oracle/textbook.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <thread>

#include "support/limits.h"

namespace fa3::test {
namespace {

// Row-major; kept transposed where that makes the products below sums of contiguous rows.
struct Matrix {
  int64_t rows, cols;
  std::vector<double> numbers;

  Matrix(int64_t r, int64_t c) : rows(r), cols(c), numbers(static_cast<size_t>(r * c)) {}
  const double* row(int64_t r) const { return numbers.data() + r * cols; }
  double* row(int64_t r) { return numbers.data() + r * cols; }
};

Matrix gather(const Tensor& tensor, Sequence at, int64_t head) {
  Matrix matrix(at.used, tensor.shape().dim);
  for (int64_t r = 0; r < at.used; ++r) {
    for (int64_t c = 0; c < matrix.cols; ++c) {
      matrix.row(r)[c] = tensor.get(at.batch, at.first + r, head, c);
    }
  }
  return matrix;
}

Matrix transposed(Matrix matrix) {
  Matrix result(matrix.cols, matrix.rows);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    for (int64_t c = 0; c < matrix.cols; ++c) result.row(c)[r] = matrix.row(r)[c];
  }
  return result;
}

// What the oracle does most is compiled for wide vectors too.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FA3_WIDE [[gnu::target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")]]
#else
#define FA3_WIDE
#endif

// out += weight * row
FA3_WIDE void add(double weight, const double* row, int64_t count, double* out) {
  for (int64_t i = 0; i < count; ++i) out[i] += weight * row[i];
}

// Adds four rows, one behind the other, so that `out` is loaded and stored once.
FA3_WIDE void add_four(const double* weights, const double* rows, int64_t count, double* out) {
  const double *a = rows, *b = a + count, *c = b + count, *d = c + count;
  for (int64_t i = 0; i < count; ++i) {
    out[i] += (weights[0] * a[i] + weights[1] * b[i]) + (weights[2] * c[i] + weights[3] * d[i]);
  }
}

// out += weights * matrix. Rows of weight 0 may be left out: NaN in a row that nobody sees.
enum class Zeros { count, are_left_out };
void add_product(const double* weights, const Matrix& matrix, Zeros zeros, double* out) {
  const auto left_out = [&](int64_t row) {
    return zeros == Zeros::are_left_out && weights[row] == 0;
  };
  int64_t row = 0;
  while (row < matrix.rows) {
    if (left_out(row)) {
      ++row;
    } else if (row + 4 <= matrix.rows && !left_out(row + 1) && !left_out(row + 2) &&
               !left_out(row + 3)) {
      add_four(weights + row, matrix.row(row), matrix.cols, out);
      row += 4;
    } else {
      add(weights[row], matrix.row(row), matrix.cols, out);
      ++row;
    }
  }
}

double norm(const double* row, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += row[i] * row[i];
  return std::sqrt(sum);
}

// The size of a.b if its terms had random signs.
double size_of_terms(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * a[i] * b[i] * b[i];
  return std::sqrt(sum);
}

// One key/value head of one sequence.
struct Keys {
  Sequence at;
  int64_t head;
  Matrix k, v, kt, vt;
  Matrix vt_squared;
  std::vector<double> k_norm, v_norm_squared;

  Keys(const Case& c, const Inputs& in, int64_t b, int64_t h)
      : at(c.sequence_k(b)),
        head(h),
        k(gather(in.k, at, h)),
        v(gather(in.v, at, h)),
        kt(transposed(k)),
        vt(transposed(v)),
        vt_squared(vt) {
    for (double& number : vt_squared.numbers) number *= number;
    for (int64_t j = 0; j < at.used; ++j) {
      k_norm.push_back(norm(k.row(j), c.dim));
      v_norm_squared.push_back(std::pow(norm(v.row(j), c.dim_v), 2));
    }
  }
};

// One query head of one sequence, a query row at a time.
struct Head {
  const Case& c;
  const MaskData& mask;
  int64_t sequence;
  const Keys& keys;
  Sequence q_at, k_at;
  int64_t head, kv_head;
  double sink;  // -inf: none
  Matrix q;
  Matrix gate;                              // sigmoid of its logits, or nothing
  std::vector<double> kept;                 // dropout's factors, row by row
  std::vector<double> p, slope, dp, terms;  // of one row; terms: of dp, squared

  Head(const Case& problem, const Inputs& in, const Keys& kv, int64_t b, int64_t h)
      : c(problem),
        mask(in.mask),
        sequence(b),
        keys(kv),
        q_at(c.sequence_q(b)),
        k_at(kv.at),
        head(h),
        kv_head(kv.head),
        sink(c.sink ? double{in.sink.get(0, 0, h, 0)} : -kInfinity),
        q(gather(in.q, q_at, h)),
        gate(c.gate == Gate::none ? Matrix(0, 0) : gather(in.gate, q_at, h)),
        kept(dropout_factors(c, b, h, q_at.used, k_at.used)),
        p(static_cast<size_t>(k_at.used)),
        slope(p.size()),
        dp(p.size()),
        terms(p.size()) {
    for (double& number : gate.numbers) number = 1 / (1 + std::exp(-number));
  }

  double gate_factor(int64_t i, int64_t column) const {
    return gate.rows == 0 ? 1 : gate.row(i)[gate.cols == 1 ? 0 : column];
  }

  struct Largest {
    double score = 0;               // of |softcap(scale * q.k)|
    double logit = 0;               // of |scale * q.k|
    double max_logit = -kInfinity;  // signed; NaN if one is

    void join(const Largest& other) {
      score = std::max(score, other.score);
      logit = std::max(logit, other.logit);
      raise(other.max_logit);
    }
    void raise(double x) {
      if (x > max_logit || std::isnan(x)) max_logit = x;
    }
  };

  // Fills p and slope for a query and returns its LSE.
  double softmax(int64_t i, Largest* largest) {
    std::fill(p.begin(), p.end(), 0.0);
    std::vector<double> scaled(q.row(i), q.row(i) + c.dim);
    for (double& number : scaled) number *= c.effective_scale();
    add_product(scaled.data(), keys.kt, Zeros::count, p.data());
    double max = sink;
    for (int64_t j = 0; j < k_at.used; ++j) {
      double& score = p[static_cast<size_t>(j)];
      slope[static_cast<size_t>(j)] = 1;
      if (sees(i, j)) {
        largest->raise(score);
        if (std::isfinite(score)) largest->logit = std::max(largest->logit, std::abs(score));
      }
      if (c.softcap > 0) {
        const double t = std::tanh(score / double{c.softcap});
        score = double{c.softcap} * t;
        slope[static_cast<size_t>(j)] = 1 - t * t;
      }
      if (!sees(i, j)) score = -kInfinity;
      if (std::isfinite(score)) largest->score = std::max(largest->score, std::abs(score));
      max = std::max(max, score);
    }
    if (max == -kInfinity) max = 0;
    double sum = std::exp(sink - max);
    for (double& weight : p) sum += weight = std::exp(weight - max);
    if (sum == 0) return -kInfinity;
    for (double& weight : p) weight /= sum;
    return max + std::log(sum);
  }

  bool sees(int64_t i, int64_t j) const {
    return visible(c, i, j, q_at.used, k_at.used) &&
           (!c.mask.on || mask.shows(sequence, head, i, j));
  }

  const double* kept_of(int64_t i) const { return kept.data() + i * k_at.used; }

  void forward(int64_t first_row, int64_t end_row, Textbook* book, Largest* largest) {
    for (int64_t i = first_row; i < end_row; ++i) {
      *book->lse.row(q_at.batch, q_at.first + i, head) = softmax(i, largest);
      for (size_t j = 0; j < p.size(); ++j) p[j] *= kept_of(i)[j];
      double* o = book->o.row(q_at.batch, q_at.first + i, head);
      add_product(p.data(), keys.v, Zeros::are_left_out, o);
      double squares = 0;
      for (int64_t j = 0; j < k_at.used; ++j) {
        const double weight = p[static_cast<size_t>(j)];
        if (weight != 0) squares += weight * weight * keys.v_norm_squared[static_cast<size_t>(j)];
      }
      double most = 0;
      for (int64_t col = 0; col < c.dim_v; ++col) {
        o[col] *= gate_factor(i, col);
        most = std::max(most, gate_factor(i, col));
      }
      *book->o_terms.row(q_at.batch, q_at.first + i, head) = most * std::sqrt(squares);
    }
  }

  // dV = (F P)^T dO,  dP = F dO V^T,  F: dropout's factors,  dS = P (dO V^T - dO.O + dLSE) slope,
  // dQ = scale dS K,  dK = scale dS^T Q.
  void backward(const Inputs& in, Textbook* book) {
    const Matrix given = gather(in.d_o, q_at, head);
    Matrix gradient = given;
    Largest largest;
    for (int64_t i = 0; i < q_at.used; ++i) {
      const double lse = softmax(i, &largest);
      for (int64_t col = 0; col < c.dim_v; ++col) gradient.row(i)[col] *= gate_factor(i, col);
      const double* g = gradient.row(i);
      if (gate.rows > 0) backward_gate(i, given.row(i), book);
      std::fill(dp.begin(), dp.end(), 0.0);
      std::fill(terms.begin(), terms.end(), 0.0);
      add_product(g, keys.vt, Zeros::count, dp.data());
      for (int64_t col = 0; col < c.dim_v; ++col) {
        add(g[col] * g[col], keys.vt_squared.row(col), k_at.used, terms.data());
      }
      for (size_t j = 0; j < p.size(); ++j) {
        dp[j] *= kept_of(i)[j];
        terms[j] *= kept_of(i)[j] * kept_of(i)[j];
      }
      double mean = 0;
      for (size_t j = 0; j < p.size(); ++j) mean += p[j] * dp[j];
      const double d_lse =
          c.d_lse ? double{in.d_lse.get(q_at.batch, q_at.first + i, head, 0)} : 0.0;
      mean -= d_lse;
      const double* o = book->o.row(q_at.batch, q_at.first + i, head);
      const RowGradient row{g, norm(g, c.dim_v), norm(q.row(i), c.dim), mean,
                            std::hypot(size_of_terms(given.row(i), o, c.dim_v), d_lse)};
      for (int64_t j = 0; j < k_at.used; ++j) {
        if (p[static_cast<size_t>(j)] != 0) backward_pair(i, j, row, book);
      }
      if (!c.sink || lse == -kInfinity) continue;
      *book->dsink.row(0, 0, head) -= std::exp(sink - lse) * mean;
      *book->dsink_terms.row(0, 0, head) += std::exp(sink - lse) * row.terms;
    }
  }

  // dg = dO O (1 - sigmoid(g)), in one sum where the row has one logit.
  void backward_gate(int64_t i, const double* d_o, Textbook* book) const {
    const int64_t row = q_at.first + i;
    const double* o = book->o.row(q_at.batch, row, head);
    double* const d_gate = book->d_gate.row(q_at.batch, row, head);
    double squares = 0;
    for (int64_t col = 0; col < c.dim_v; ++col) {
      const double factor = d_o[col] * (1 - gate_factor(i, col));
      d_gate[gate.cols == 1 ? 0 : col] += factor * o[col];
      squares += factor * factor;
    }
    // An error of O has the size of its terms, over all columns.
    *book->d_gate_terms.row(q_at.batch, row, head) =
        *book->o_terms.row(q_at.batch, row, head) *
        std::sqrt(squares / static_cast<double>(c.dim_v));
  }

  struct RowGradient {
    const double* d_o;
    double d_o_norm, q_norm;
    double mean;   // dO.O - dLSE
    double terms;  // its size without cancellation
  };

  // What query i and key j give to each other.
  void backward_pair(int64_t i, int64_t j, const RowGradient& row, Textbook* book) const {
    const auto at = static_cast<size_t>(j);
    const int64_t q_row = q_at.first + i, kv_row = k_at.first + j;
    const double* q_numbers = q.row(i);
    const double* k_numbers = keys.k.row(j);
    const double weight = c.effective_scale() * p[at] * slope[at];
    const double ds = weight * (dp[at] - row.mean);
    add(ds, k_numbers, c.dim, book->dq.row(q_at.batch, q_row, head));
    add(ds, q_numbers, c.dim, book->dk.row(k_at.batch, kv_row, kv_head));
    const double kept_weight = p[at] * kept_of(i)[at];
    add(kept_weight, row.d_o, c.dim_v, book->dv.row(k_at.batch, kv_row, kv_head));
    const double size = weight * (std::sqrt(terms[at]) + row.terms);
    *book->dq_terms.row(q_at.batch, q_row, head) += size * keys.k_norm[at];
    *book->dk_terms.row(k_at.batch, kv_row, kv_head) += size * row.q_norm;
    *book->dv_terms.row(k_at.batch, kv_row, kv_head) += kept_weight * row.d_o_norm;
  }
};

Shape one_column(Shape shape) {
  shape.dim = 1;
  return shape;
}

template <class Visitor>
void for_each_head(const Case& c, const Inputs& inputs, Visitor&& visit) {
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t kv_head = 0; kv_head < c.heads_k; ++kv_head) {
      const Keys keys(c, inputs, b, kv_head);
      for (int64_t h = kv_head * c.group(); h < (kv_head + 1) * c.group(); ++h) {
        Head head(c, inputs, keys, b, h);
        visit(head);
      }
    }
  }
}

// The rows of a head, divided among threads where the work is worth it.
void forward_in_parts(const Head& head, Textbook* book) {
  constexpr int64_t kLeastWork = 1 << 22;  // multiplications: milliseconds
  const int64_t rows = head.q_at.used;
  const int64_t work = rows * head.k_at.used * (head.c.dim + head.c.dim_v);
  const int64_t most = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  const int64_t parts = std::clamp<int64_t>(work / kLeastWork, 1, std::min(most, rows + 1));
  std::mutex mutex;
  const auto part = [&](int64_t i) {
    Head mine = head;
    Head::Largest largest;
    mine.forward(rows * i / parts, rows * (i + 1) / parts, book, &largest);
    const std::scoped_lock lock(mutex);
    double& max_logit = *book->max_logit.row(head.sequence, 0, head.head);
    largest.join({book->largest_score, book->largest_logit, max_logit});
    max_logit = largest.max_logit;
    book->largest_score = largest.score;
    book->largest_logit = largest.logit;
  };
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < parts; ++i) threads.emplace_back(part, i);
  part(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

Textbook textbook_forward(const Case& c, const Inputs& inputs) {
  Textbook book;
  book.o = Values(c.o_shape());
  book.lse = Values(c.lse_shape());
  book.o_terms = Values(c.lse_shape());
  book.max_logit = Values(c.max_logit_shape());
  for (Values* values : {&book.lse, &book.max_logit}) {
    std::fill(values->numbers.begin(), values->numbers.end(), -kInfinity);
  }
  for_each_head(c, inputs, [&](const Head& head) { forward_in_parts(head, &book); });
  return book;
}

Textbook textbook_backward(const Case& c, const Inputs& inputs) {
  Textbook book = textbook_forward(c, inputs);
  book.dq = Values(c.q_shape());
  book.dk = Values(c.k_shape());
  book.dv = Values(c.v_shape());
  book.dsink = Values({1, 1, c.sink ? c.heads_q : 0, 1});
  book.dq_terms = Values(one_column(c.q_shape()));
  book.dk_terms = Values(one_column(c.k_shape()));
  book.dv_terms = Values(one_column(c.k_shape()));
  book.dsink_terms = book.dsink;
  if (c.gate != Gate::none) {
    book.d_gate = Values(c.gate_shape());
    book.d_gate_terms = Values(c.lse_shape());
  }
  for_each_head(c, inputs, [&](Head& head) { head.backward(inputs, &book); });
  return book;
}

}  // namespace fa3::test
