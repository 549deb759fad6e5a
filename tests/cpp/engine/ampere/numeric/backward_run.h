// SPDX-License-Identifier: Apache-2.0
//
// A backward call computed by the kernels' own sources on the host (runtime.h), through the
// engine's plan and launch, beside double precision. Included by one source of a program. Next:
// backward_numeric_test.cpp.
#pragma once

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cuda/backward_cases.h"
#include "engine/ampere/instances/backward_entry.cuh"
#include "engine/ampere/launch/launch.h"
#include "engine/cuda/kernels/kernels.h"
#include "random_map.h"
#include "runtime.h"

// The sinks' sums are another kernel's, of which there is the result alone.
cudaError_t fa3::cuda::sum_sink_gradients(const SinkSums& p, cudaStream_t) {
  for (int head = 0; head < p.heads; ++head) {
    double sum = 0;
    for (int b = 0; b < p.batches; ++b) {
      for (int i = 0; i < p.q_blocks; ++i) {
        sum += double(p.sums[(int64_t{b} * p.heads + head) * p.q_blocks + i]);
      }
    }
    p.d_sink[head] = float(-sum);
  }
  return cudaSuccess;
}

namespace fa3::ampere {

using testing::BackwardCase;
using testing::SideLayout;
using Numbers = std::vector<double>;

template <BackwardConfig kMain>
BackwardKernel emulated() {
  constexpr Element E = kMain.element;
  const BackwardKernel kernel = backward_kernel_of<kMain>();
  std::vector<machine::Buffer> statistics;
  for (int stage = 0; stage < kMain.stages; ++stage) {
    const int begin = BackwardSmem<kMain>::lse(stage);
    statistics.push_back(
        {"LSE and Delta", machine::kSmemBase + uint32_t(begin), kMain.statistics_bytes()});
  }
  machine::add_kernel(&preprocess_kernel<E, lanes_per_row(kMain.head_dim_v)>);
  machine::add_kernel(&gated_preprocess_kernel<E, lanes_per_row(kMain.head_dim_v)>);
  machine::add_kernel(&backward_kernel<kMain>, statistics);
  machine::add_kernel(&postprocess_kernel<kMain.of_dq()>);
  return kernel;
}

template <int TableRow, Element E, bool Scored>
BackwardKernel emulated() {
  return emulated<kernel_of((Scored ? kScoredRows : kPlainRows)[TableRow], E)>();
}

// How a call differs from tensors without gaps.
struct Layout {
  int columns_less = 0;
  int row_gap = 0;                      // elements between a row's heads and the next row
  int shift = 0;                        // of every tensor's first element
  cuda::Gate gate = cuda::Gate::kNone;  // of the output: kRows, or kColumns
};

// A (row, head, column) tensor; what belongs to nobody is NaN.
template <Element E>
struct Tensor {
  int64_t rows, rows_of_entry;
  int heads, columns, stride;
  std::vector<uint16_t> data;
  int shift;

  Tensor(const SideLayout& side, int of_heads, int of_columns, const Layout& layout)
      : rows(int64_t(side.all_rows())),
        rows_of_entry(side.rows),
        heads(of_heads),
        columns(of_columns),
        stride(of_heads * of_columns + layout.row_gap),
        data(size_t(rows * stride + layout.shift + 8), 0x7fff),
        shift(layout.shift) {}

  int64_t index(int64_t row, int head, int column) const {
    return shift + row * stride + head * columns + column;
  }
  double at(int64_t row, int head, int column) const {
    return double(cuda::widened<E>(data[size_t(index(row, head, column))]));
  }
  void fill(const SideLayout& side, unsigned seed, float sigma) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, sigma);
    for (int64_t row = 0; row < rows; ++row) {
      for (int i = 0; side.uses(size_t(row)) && i < heads * columns; ++i) {
        data[size_t(index(row, 0, i))] = cuda::narrowed<E>(normal(random));
      }
    }
  }
  cuda::TensorSpan span() {
    return {data.data() + shift,
            rows / rows_of_entry,
            rows_of_entry,
            heads,
            columns,
            rows_of_entry * stride,
            stride,
            columns};
  }
};

template <Element E>
double rounded(double x) {
  return double(cuda::widened<E>(cuda::narrowed<E>(float(x))));
}

// A score function of double precision, with its slope, the tensors that the kernel's captures, and
// what is done with the gradient of each score that it returns.
struct Scoring {
  using OfScore = std::function<double(double score, int b, int h, int q, int k)>;
  OfScore score, slope;
  cuda::ScoreGradientParams captured{};
  std::function<void(double gradient, double score, int b, int h, int q, int k)> on_gradient;
};

// Gradients in double precision, and what a backward that rounds P and dS would give.
template <Element E>
struct Reference {
  Tensor<E>&q, &k, &v, &d_o, &o;
  std::vector<float>& lse;
  const std::vector<float>&d_lse, &sink;
  const RandomMap& map;
  const Scoring& scoring;
  std::vector<double> dq, dk, dv, naive_dq, naive_dk, naive_dv, d_sink;

  void run(const BackwardCase& c, const SideLayout& of_q, const SideLayout& of_k, double scale) {
    for (auto* g : {&dq, &naive_dq}) g->assign(q.data.size(), 0);
    for (auto* g : {&dk, &naive_dk}) g->assign(k.data.size(), 0);
    for (auto* g : {&dv, &naive_dv}) g->assign(v.data.size(), 0);
    d_sink.assign(size_t(c.heads), 0);
    const int group = c.heads / c.kv_heads;
    const MaskRuleOf<int> mask = c.mask();
    const Dropout dropout = c.drops();
    for (int b = 0; b < c.batches; ++b) {
      const int keys = of_k.used[size_t(b)], queries = of_q.used[size_t(b)];
      for (int h = 0; h < c.heads; ++h) {
        const DropoutHead draws = dropout.head(dropout.call_key(), b, h);
        for (int i = 0; i < queries; ++i) {
          const int64_t row = of_q.begin[size_t(b)] + i, first_key = of_k.begin[size_t(b)];
          DropoutRow of_row(dropout, draws, i);
          Numbers p(size_t(keys), 0.0), slope(size_t(keys), 1.0), kept(size_t(keys), 1.0);
          Numbers given(size_t(keys), 0.0);
          double largest = c.sink ? double(sink[size_t(h)]) : -INFINITY, sum = 0;
          for (int j = 0; j < keys; ++j) {
            double s = 0;
            for (int x = 0; x < q.columns; ++x) {
              s += q.at(row, h, x) * k.at(first_key + j, h / group, x);
            }
            s *= scale;
            if (c.softcap > 0) {
              const double t = std::tanh(s / c.softcap);
              s = c.softcap * t;
              slope[size_t(j)] = 1 - t * t;
            }
            given[size_t(j)] = s;
            if (scoring.score) {
              slope[size_t(j)] = scoring.slope(s, b, h, i, j);
              s = scoring.score(s, b, h, i, j);
            }
            if (dropout.on()) kept[size_t(j)] = of_row.keeps(j) ? dropout.scale() : 0;
            const bool shown = mask.visible(i, j, queries, keys) && map.shows(b, h, i, j);
            p[size_t(j)] = shown ? s : -INFINITY;
            largest = std::max(largest, p[size_t(j)]);
          }
          for (double& x : p) sum += x = largest == -INFINITY ? 0 : std::exp(x - largest);
          const double of_sink = c.sink ? std::exp(double(sink[size_t(h)]) - largest) : 0;
          sum += of_sink;
          for (double& x : p) x = sum == 0 ? 0 : x / sum;
          const size_t number = size_t(number_of(of_q, row, h, c.heads));
          lse[number] = sum == 0 ? -INFINITY : float(largest + std::log(sum));
          double delta = 0;
          for (int x = 0; x < v.columns; ++x) {
            double out = 0;
            for (int j = 0; j < keys; ++j) {
              if (p[size_t(j)] != 0) {
                out += p[size_t(j)] * kept[size_t(j)] * v.at(first_key + j, h / group, x);
              }
            }
            o.data[size_t(o.index(row, h, x))] = cuda::narrowed<E>(float(out));
            delta += out * d_o.at(row, h, x);
          }
          if (c.d_lse && sum != 0) delta -= double(d_lse[number]);
          if (sum != 0) d_sink[size_t(h)] -= of_sink / sum * delta;
          for (int j = 0; j < keys; ++j) {
            if (p[size_t(j)] == 0) continue;
            const int64_t key = first_key + j;
            double dp = 0;
            for (int x = 0; x < v.columns; ++x) dp += d_o.at(row, h, x) * v.at(key, h / group, x);
            const double returned = p[size_t(j)] * (dp * kept[size_t(j)] - delta);
            if (scoring.on_gradient) scoring.on_gradient(returned, given[size_t(j)], b, h, i, j);
            const double ds = returned * slope[size_t(j)];
            const double naive_p = rounded<E>(p[size_t(j)]), naive_ds = rounded<E>(ds);
            for (int x = 0; x < q.columns; ++x) {
              const size_t at_q = size_t(q.index(row, h, x));
              const size_t at_k = size_t(k.index(key, h / group, x));
              const double of_k_here = k.at(key, h / group, x), of_q_here = q.at(row, h, x);
              dq[at_q] += scale * ds * of_k_here;
              naive_dq[at_q] += scale * naive_ds * of_k_here;
              dk[at_k] += scale * ds * of_q_here;
              naive_dk[at_k] += scale * naive_ds * of_q_here;
            }
            for (int x = 0; x < v.columns; ++x) {
              const size_t at_v = size_t(v.index(key, h / group, x));
              dv[at_v] += p[size_t(j)] * kept[size_t(j)] * d_o.at(row, h, x);
              naive_dv[at_v] += naive_p * kept[size_t(j)] * d_o.at(row, h, x);
            }
          }
        }
      }
    }
  }
  // LSEs: (entry, head, row).
  static int64_t number_of(const SideLayout& of_q, int64_t row, int head, int heads) {
    return (row / of_q.rows * heads + head) * of_q.rows + row % of_q.rows;
  }
};

// "" or the first row whose error is larger than that of the naive backward allows.
template <Element E>
std::string compare(const char* name, const Tensor<E>& got, const std::vector<double>& exact,
                    const std::vector<double>& naive) {
  const double ulp = E == Element::kFp16 ? 0x1p-10 : 0x1p-7;
  double norm = 0;
  for (double x : exact) norm += x * x;
  const double typical = std::sqrt(norm / double(std::max<int64_t>(got.rows * got.heads, 1)));
  for (int64_t row = 0; row < got.rows; ++row) {
    for (int h = 0; h < got.heads; ++h) {
      double error = 0, naive_error = 0, size = 0;
      for (int x = 0; x < got.columns; ++x) {
        const size_t i = size_t(got.index(row, h, x));
        const double value = got.at(row, h, x);
        error += std::isfinite(value) ? (value - exact[i]) * (value - exact[i]) : INFINITY;
        naive_error += (naive[i] - exact[i]) * (naive[i] - exact[i]);
        size += exact[i] * exact[i];
      }
      const double allowed = 2 * std::sqrt(naive_error) + ulp * std::sqrt(size) +
                             0.5 * ulp * typical + 1e-6 * got.columns;
      if (!(std::sqrt(error) <= allowed)) {
        return std::string(name) + " row " + std::to_string(row) + " head " + std::to_string(h) +
               ": error " + std::to_string(std::sqrt(error)) + ", allowed " +
               std::to_string(allowed) + ", norm " + std::to_string(std::sqrt(size));
      }
    }
  }
  return "";
}

// An output gate, O = s A: dO and O as the call has them, and what the gate's gradient should be.
// Rows' gates have one column.
template <Element E>
struct NumericGate {
  Tensor<E> logits, d_logits, d_o, o;

  NumericGate(const SideLayout& of_q, const Tensor<E>& like, const Layout& layout)
      : logits(of_q, like.heads, layout.gate == cuda::Gate::kRows ? 1 : like.columns, layout),
        d_logits(logits),
        d_o(like),
        o(like) {
    logits.fill(of_q, 6, 3);
  }
  double factor(int64_t row, int head, int column) const {
    return 1 / (1 + std::exp(-logits.at(row, head, logits.columns == 1 ? 0 : column)));
  }
  // Used rows of `to` become those of `from` behind the gate.
  void apply(const SideLayout& of_q, const Tensor<E>& from, Tensor<E>& to) const {
    for (int64_t row = 0; row < to.rows; ++row) {
      for (int h = 0; of_q.uses(size_t(row)) && h < to.heads; ++h) {
        for (int x = 0; x < to.columns; ++x) {
          to.data[size_t(to.index(row, h, x))] =
              cuda::narrowed<E>(float(factor(row, h, x) * from.at(row, h, x)));
        }
      }
    }
  }
  // Rows that no sequence uses have gradients of 0.
  std::string wrong(const SideLayout& of_q) const {
    for (int64_t row = 0; row < o.rows; ++row) {
      for (int h = 0; h < o.heads; ++h) {
        std::vector<double> expected(size_t(logits.columns)), size(expected);
        for (int x = 0; of_q.uses(size_t(row)) && x < o.columns; ++x) {
          const double term = d_o.at(row, h, x) * o.at(row, h, x) * (1 - factor(row, h, x));
          expected[size_t(x % logits.columns)] += term;
          size[size_t(x % logits.columns)] += std::abs(term);
        }
        for (int x = 0; x < logits.columns; ++x) {
          const double error = std::abs(d_logits.at(row, h, x) - expected[size_t(x)]);
          if (!(error <= 0x1p-7 * size[size_t(x)] + 1e-6)) {
            return "d_gate row " + std::to_string(row) + ": error " + std::to_string(error);
          }
        }
      }
    }
    return "";
  }
};

// Runs a case; "" or what is wrong with its gradients.
template <Element E>
std::string run(const BackwardKernel& kernel, BackwardCase c, const Layout& layout = {},
                const Scoring& scoring = {}) {
  const RandomMap map = kernel.config.block_mask
                            ? RandomMap(c.batches, c.heads, c.seqlen_q, c.seqlen_k)
                            : RandomMap();
  const SideLayout of_q(c, c.q, c.seqlen_q), of_k(c, c.k, c.seqlen_k);
  const int d = kernel.config.head_dim - layout.columns_less;
  const int dv = kernel.config.head_dim_v - layout.columns_less;
  Tensor<E> q(of_q, c.heads, d, layout), k(of_k, c.kv_heads, d, layout);
  Tensor<E> v(of_k, c.kv_heads, dv, layout), d_o(of_q, c.heads, dv, layout);
  Tensor<E> o = d_o, dq = q, dk = k, d_v = v;
  q.fill(of_q, 1, c.q_sigma), k.fill(of_k, 2, 1), v.fill(of_k, 3, 1), d_o.fill(of_q, 4, 1);
  std::vector<float> lse(size_t(q.rows * c.heads), NAN), d_lse(lse.size()), sink(size_t(c.heads));
  std::vector<float> d_sink(sink.size(), NAN);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (float& x : d_lse) x = normal(random);
  for (float& x : sink) x = normal(random);
  const double scale = double(float(1 / std::sqrt(double(d))));
  const bool gated = layout.gate != cuda::Gate::kNone;
  NumericGate<E> gate(of_q, d_o, layout);
  if (gated) gate.apply(of_q, gate.d_o, d_o);
  Reference<E> reference{q,       k,  v,  d_o, o,  lse, d_lse, sink, map,
                         scoring, {}, {}, {},  {}, {},  {},    {}};
  reference.run(c, of_q, of_k, scale);

  cuda::BackwardCall a;
  a.q = q.span(), a.k = k.span(), a.v = v.span(), a.o = o.span(), a.d_o = d_o.span();
  if (gated) {
    gate.apply(of_q, o, gate.o);
    a.o = gate.o.span(), a.d_o = gate.d_o.span();
    a.gate = {cuda::row_tensor(gate.logits.span()), layout.gate,
              E == Element::kFp16 ? cuda::GateType::kFp16 : cuda::GateType::kBf16};
    a.d_gate = cuda::row_tensor(gate.d_logits.span());
  }
  a.dq = dq.span(), a.dk = dk.span(), a.dv = d_v.span();
  a.lse = {lse.data(), {int64_t{c.heads} * of_q.rows, of_q.rows, 1}};
  if (c.d_lse) a.d_lse = {d_lse.data(), a.lse.strides};
  a.scale = float(scale);
  // Kernels compute 1 - p times dS.
  a.gradient_scale = a.scale * cuda::DropoutParams::of(c.drops()).scale;
  a.gradient_scale_of_one_key = c.sink || c.d_lse ? a.gradient_scale : 0;
  a.softcap = c.softcap;
  a.mask = c.mask();
  a.block_mask = map.mask();
  a.dropout = c.drops();
  a.deterministic = c.deterministic;
  if (c.sink) a.has_sink = true, a.sink = sink.data(), a.d_sink = d_sink.data();
  a.seqlen_q = c.seqlen_q, a.seqlen_k = c.seqlen_k;
  a.varlen = c.varlen != nullptr;
  a.sequences = c.batches;
  a.has_score_function = bool(scoring.score);
  const auto lengths = [&](const SideLayout& of, const testing::Side& side, int seqlen) {
    Lengths l{.max = seqlen, .total = int64_t(of.all_rows())};
    l.varlen = a.varlen;
    l.in_one_tensor = a.varlen && side.packed;
    if (l.in_one_tensor) l.cu_seqlens = of.cu.data();
    if (a.varlen) l.seqused = of.used.data();
    return l;
  };
  a.lengths_q = lengths(of_q, c.q, c.seqlen_q);
  a.lengths_k = lengths(of_k, c.k, c.seqlen_k);
  const BackwardPlan plan = plan_launches(kernel, a);
  std::vector<uint64_t> workspace(size_t(plan.workspace.bytes / 8 + 64), ~uint64_t{0});
  void* const memory =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 255) / 256 * 256);
  cuda::ScoreGradientParams score = scoring.captured;
  score.scale = a.scale;
  launch_backward(plan, memory, nullptr, kAllLaunches, scoring.score ? &score : nullptr);
  if (const std::string said = machine::take_launch_error(); !said.empty()) return said;
  std::string wrong = compare("dq", dq, reference.dq, reference.naive_dq);
  if (wrong.empty()) wrong = compare("dk", dk, reference.dk, reference.naive_dk);
  if (wrong.empty()) wrong = compare("dv", d_v, reference.dv, reference.naive_dv);
  if (wrong.empty() && gated) wrong = gate.wrong(of_q);
  for (int h = 0; c.sink && h < c.heads; ++h) {
    const double error = std::abs(double(d_sink[size_t(h)]) - reference.d_sink[size_t(h)]);
    if (!(error < 0.02 * (1 + std::abs(reference.d_sink[size_t(h)])))) wrong += " dsink";
  }
  return wrong.empty() ? "" : c.name() + ": " + wrong;
}

}  // namespace fa3::ampere
