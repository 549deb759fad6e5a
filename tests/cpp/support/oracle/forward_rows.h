// SPDX-License-Identifier: Apache-2.0
//
// A query row of attention from the formulas, for an oracle that computes on a GPU: what
// textbook.cpp has in double precision, and what the standard engine, the baseline of errors, makes
// of the same row in float32 with S, P and O rounded. A team of threads works on a row together;
// a team of one is a thread of the host. Next: forward_oracle.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/dropout/dropout.h"
#include "core/macros.h"

namespace fa3::test {

FA3_HD inline bool is_finite(double x) {
  return x - x == 0;
}

// A floating-point type of fewer bits.
struct Rounding {
  int digits = 24;    // of the significand; 24: float32, nothing is rounded
  int lowest = -149;  // exponent of the smallest number
  float limit = 0;    // from here on infinite

  FA3_HD float operator()(float x) const {
    if (digits == 24 || x == 0 || !is_finite(double{x})) return x;
    const int exponent = std::ilogb(x) - (digits - 1);
    const double unit = std::ldexp(1.0, exponent > lowest ? exponent : lowest);
    const double rounded = std::rint(double{x} / unit) * unit;
    return std::fabs(rounded) < double{limit} ? float(rounded) : std::copysign(INFINITY, x);
  }
};

// One head of a sequence: its operands without gaps, and where its results go.
struct HeadOperands {
  int sequence, head;
  int queries, keys;
  int64_t q, kt, v, norms;  // where they begin: (queries, dim), (dim, keys), (keys, dim_v), (keys)
  int64_t o, lse;           // (queries, dim_v), (queries)
};

struct ForwardCall {
  int dim, dim_v;
  double scale, softcap;
  bool causal;
  int64_t left, right, shift, chunk;  // as in Case
  Dropout dropout;
  Rounding stored, output;  // of S and P, and of O
  const double *q, *kt, *v, *v_norms;
  const float* sink;                           // a head, or null
  double *o, *lse, *terms, *largest, *base_o;  // largest: |score| of a row

  FA3_HD bool sees(int64_t query, int64_t key, const HeadOperands& at) const {
    const int64_t diagonal = query + at.keys - at.queries;
    if (causal && key > diagonal) return false;
    if (left >= 0 && key < diagonal + shift - left) return false;
    if (right >= 0 && key > diagonal + shift + right) return false;
    return chunk <= 0 || (diagonal >= 0 && key / chunk == diagonal / chunk);
  }
};

// What a team keeps of a row.
struct RowMemory {
  double* weights;  // (keys)
  float* stored;    // (keys): the baseline's
};

// One row. In the baseline hidden keys count with weight 0, as in a product of matrices.
template <class Team>
FA3_HD void attend_row(const Team& team, const ForwardCall& c, const HeadOperands& at, int query,
                       const RowMemory& row) {
  const double* const q = c.q + at.q + int64_t{query} * c.dim;
  const double sink = c.sink != nullptr ? double{c.sink[at.head]} : -INFINITY;
  double most = sink, largest = 0;
  float base_most = float(sink);
  for (int key = team.rank(); key < at.keys; key += team.size()) {
    double dot = 0;
    float base_dot = 0;
    for (int i = 0; i < c.dim; ++i) {
      const double k = c.kt[at.kt + int64_t{i} * at.keys + key];
      dot += q[i] * c.scale * k;
      base_dot += float(q[i]) * float(k);
    }
    double score = dot;
    float base = float(c.scale) * base_dot;
    if (c.softcap > 0) {
      score = c.softcap * std::tanh(score / c.softcap);
      base = float(c.softcap) * std::tanh(base / float(c.softcap));
    }
    base = c.stored(base);
    const bool seen = c.sees(query, key, at);
    if (!seen) score = -INFINITY;
    if (is_finite(score) && std::fabs(score) > largest) largest = std::fabs(score);
    if (most < score) most = score;
    if (seen && base_most < base) base_most = base;
    row.weights[key] = score;
    row.stored[key] = base;
  }
  most = team.most(most);
  base_most = float(team.most(double{base_most}));
  if (most == -INFINITY) most = 0;
  if (base_most == -INFINITY) base_most = 0;

  double sum = 0;
  float base_sum = 0;
  for (int key = team.rank(); key < at.keys; key += team.size()) {
    sum += row.weights[key] = std::exp(row.weights[key] - most);
    const bool seen = c.sees(query, key, at);
    row.stored[key] = seen ? std::exp(row.stored[key] - base_most) : 0.0f;
    base_sum += row.stored[key];
  }
  sum = team.sum(sum) + std::exp(sink - most);
  base_sum = float(team.sum(double{base_sum})) + std::exp(float(sink) - base_most);
  const float base_inverse = base_sum == 0 ? 0.0f : 1 / base_sum;

  const PhiloxKey call_key = c.dropout.on() ? c.dropout.call_key() : PhiloxKey{};
  const DropoutHead head = c.dropout.head(call_key, at.sequence, at.head);
  DropoutRow drawn(c.dropout, head, query);
  double squares = 0;
  for (int key = team.rank(); key < at.keys; key += team.size()) {
    const bool kept = !c.dropout.on() || drawn.keeps(key);
    const double factor = !kept ? 0 : c.dropout.on() ? c.dropout.scale() : 1;
    double& weight = row.weights[key];
    weight = sum == 0 ? weight : weight / sum;
    weight *= factor;
    if (weight != 0) squares += weight * weight * c.v_norms[at.norms + key];
    row.stored[key] = c.stored(row.stored[key] * base_inverse) * float(factor);
  }
  squares = team.sum(squares);
  largest = team.most(largest);
  if (team.rank() == 0) {
    c.lse[at.lse + query] = sum == 0 ? -INFINITY : most + std::log(sum);
    c.terms[at.lse + query] = std::sqrt(squares);
    c.largest[at.lse + query] = largest;
  }
  team.sync();
  for (int i = team.rank(); i < c.dim_v; i += team.size()) {
    double o = 0;
    float base = 0;
    for (int key = 0; key < at.keys; ++key) {
      const double v = c.v[at.v + int64_t{key} * c.dim_v + i];
      const double weight = row.weights[key];
      if (weight != 0) o += weight * v;  // NaN in a row that nobody sees
      base += row.stored[key] * float(v);
    }
    c.o[at.o + int64_t{query} * c.dim_v + i] = o;
    c.base_o[at.o + int64_t{query} * c.dim_v + i] = double{c.output(base)};
  }
  team.sync();
}

}  // namespace fa3::test
