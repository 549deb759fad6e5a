// SPDX-License-Identifier: Apache-2.0
// One case of a backward against the oracle, row by row, for the kernels of any engine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cuda/backward_cases.h"
#include "cuda/backward_reference.cuh"
#include "cuda/device_array.cuh"
#include "cuda/watchdog.h"
#include "engine/cuda/feature_params.h"
#include "engine/cuda/host/backward_call.h"

namespace fa3::testing {

// What is checked: a plan for a call, which says its workspace and can be queued.
struct PlannedBackward {
  int64_t workspace_bytes;
  bool adds_keys;  // CTAs add to dK and dV in any order
  std::function<cudaError_t(void* workspace)> launch;
};
struct BackwardSubject {
  int head_dim, head_dim_v;
  const char* variant;  // for messages
  std::function<PlannedBackward(const cuda::BackwardCall&, int sms)> plan;
};

template <typename T>
std::vector<T> random_values(size_t count, float sigma, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<T> values(count);
  for (T& x : values) x = T(normal(engine));
  return values;
}

struct Verdict {
  bool ok = true;
  double error = 0, naive_error = 0, worst_row = 0;
  std::string where;
};

// Rows against twice what a naive backward errs there, with room for one rounding of what it sums.
template <typename T>
Verdict compare(const char* name, const std::vector<T>& got, const std::vector<double>& exact,
                const std::vector<double>& naive, int columns, double floor) {
  // What sums that cancel leave in float32: with one key dP and Delta are the same sum.
  const double absolute = 1e-6 * columns;
  const double kUlp = std::is_same_v<T, __half> ? 0x1p-10 : 0x1p-7;
  Verdict v;
  double norm = 0, total = 0, naive_total = 0;
  for (double x : exact) norm += x * x;
  const double typical = std::sqrt(norm / std::max<size_t>(exact.size(), 1));
  for (size_t row = 0; row < exact.size() / columns; ++row) {
    double error = 0, naive_error = 0, row_norm = 0;
    for (size_t i = row * columns; i < (row + 1) * columns; ++i) {
      const double x = float(got[i]);
      if (!std::isfinite(x)) error = INFINITY;
      error += (x - exact[i]) * (x - exact[i]);
      naive_error += (naive[i] - exact[i]) * (naive[i] - exact[i]);
      row_norm += exact[i] * exact[i];
    }
    total += error;
    naive_total += naive_error;
    const double allowed = 2 * std::sqrt(naive_error) + kUlp * std::sqrt(row_norm) +
                           floor * kUlp * typical * std::sqrt(double(columns)) + absolute;
    v.worst_row = std::max(v.worst_row, std::sqrt(error) / allowed);
    if (!(std::sqrt(error) <= allowed) && v.ok) {
      v.ok = false;
      char text[160];
      std::snprintf(text, sizeof text, "%s row %zu: error %.3g, allowed %.3g, norm %.3g", name, row,
                    std::sqrt(error), allowed, std::sqrt(row_norm));
      v.where = text;
    }
  }
  v.error = norm > 0 ? std::sqrt(total / norm) : std::sqrt(total);
  v.naive_error = norm > 0 ? std::sqrt(naive_total / norm) : std::sqrt(naive_total);
  return v;
}

// "" or what is wrong: sums of many rows, in float32 within a query block.
inline std::string compare_sinks(const std::vector<float>& got, const std::vector<double>& exact,
                                 const std::vector<double>& naive,
                                 const std::vector<double>& terms) {
  for (size_t h = 0; h < got.size(); ++h) {
    const double allowed = 2 * std::abs(naive[h] - exact[h]) + 2e-5 * terms[h] + 1e-6;
    if (std::abs(got[h] - exact[h]) <= allowed) continue;
    char text[120];
    std::snprintf(text, sizeof text, "dsink %zu: %.6g, expected %.6g, allowed %.2g; ", h, got[h],
                  exact[h], allowed);
    return text;
  }
  return "";
}

template <typename T>
bool check(const BackwardSubject& subject, const BackwardCase& c, int repeats, bool verbose,
           double* worst) {
  const SideLayout of_q(c, c.q, c.seqlen_q), of_k(c, c.k, c.seqlen_k);
  const bool packed_q = c.varlen && c.q.packed, packed_k = c.varlen && c.k.packed;
  std::vector<SequenceSpan> spans;
  for (int b = 0; b < c.batches; ++b) {
    spans.push_back({of_q.begin[b], of_k.begin[b], of_q.used[b], of_k.used[b]});
  }
  const DeviceArray<SequenceSpan> device_spans(spans);
  BackwardShape s{c.batches,
                  c.heads,
                  c.kv_heads,
                  c.seqlen_q,
                  c.seqlen_k,
                  subject.head_dim - c.head_dim_less,
                  subject.head_dim_v - c.head_dim_less,
                  c.mask(),
                  0,
                  c.softcap,
                  packed_q,
                  int64_t(of_q.all_rows()),
                  device_spans.data,
                  c.drops()};
  s.scale = float(1 / std::sqrt(double(s.head_dim)));
  const size_t q_rows = of_q.all_rows() * c.heads, k_rows = of_k.all_rows() * c.kv_heads;
  const size_t scores = size_t(c.batches) * c.heads * c.seqlen_q * c.seqlen_k;
  const std::string name = c.name();
  const unsigned seed = unsigned(std::hash<std::string>{}(name));
  const auto random_rows = [&](const SideLayout& of, int heads, int columns, float sigma,
                               unsigned number) {
    const size_t count = size_t(heads) * columns;
    return of.poisoned(random_values<T>(of.all_rows() * count, sigma, seed + number), count);
  };
  DeviceArray<T> q(random_rows(of_q, c.heads, s.head_dim, c.q_sigma, 0));
  DeviceArray<T> k(random_rows(of_k, c.kv_heads, s.head_dim, 1, 1));
  DeviceArray<T> v(random_rows(of_k, c.kv_heads, s.head_dim_v, 1, 2));
  DeviceArray<T> d_o(random_rows(of_q, c.heads, s.head_dim_v, 1, 3));
  DeviceArray<float> d_lse(random_values<float>(q_rows, 1, seed + 4));
  DeviceArray<float> sink(random_values<float>(c.heads, 1, seed + 5)), d_sink(c.heads);
  DeviceArray<T> o(q_rows * s.head_dim_v), dq(q_rows * s.head_dim), dk(k_rows * s.head_dim),
      dv(k_rows * s.head_dim_v);
  DeviceArray<float> lse(q_rows);
  DeviceArray<double> p(scores), ds(scores), naive_ds(scores);
  DeviceArray<double> xq(dq.count), xk(dk.count), xv(dv.count);
  DeviceArray<double> nq(dq.count), nk(dk.count), nv(dv.count);
  DeviceArray<double> xs(c.heads), ns(c.heads), terms(c.heads);
  for (auto* gradient : {&xq, &xk, &xv, &nq, &nk, &nv, &xs, &ns, &terms}) gradient->clear();
  BackwardTensors<T> t{q.data,
                       k.data,
                       v.data,
                       d_o.data,
                       c.d_lse ? d_lse.data : nullptr,
                       c.sink ? sink.data : nullptr,
                       o.data,
                       lse.data,
                       p.data,
                       ds.data,
                       naive_ds.data,
                       xq.data,
                       xk.data,
                       xv.data,
                       nq.data,
                       nk.data,
                       nv.data,
                       xs.data,
                       ns.data,
                       terms.data};
  reference_rows<T><<<dim3(c.seqlen_q, c.heads, c.batches), 128>>>(s, t);
  reference_dq<T><<<dim3(c.seqlen_q, c.heads, c.batches), 128>>>(s, t);
  reference_dkv<T><<<dim3(c.seqlen_k, c.kv_heads, c.batches), 128>>>(s, t);
  CHECK_CUDA(cudaDeviceSynchronize());

  cuda::BackwardCall a;
  a.q = span_of(q.data, of_q.batches, of_q.rows, c.heads, s.head_dim);
  a.k = span_of(k.data, of_k.batches, of_k.rows, c.kv_heads, s.head_dim);
  a.v = span_of(v.data, of_k.batches, of_k.rows, c.kv_heads, s.head_dim_v);
  a.o = span_of(o.data, of_q.batches, of_q.rows, c.heads, s.head_dim_v);
  a.d_o = span_of(d_o.data, of_q.batches, of_q.rows, c.heads, s.head_dim_v);
  a.dq = span_of(dq.data, of_q.batches, of_q.rows, c.heads, s.head_dim);
  a.dk = span_of(dk.data, of_k.batches, of_k.rows, c.kv_heads, s.head_dim);
  a.dv = span_of(dv.data, of_k.batches, of_k.rows, c.kv_heads, s.head_dim_v);
  a.lse = {lse.data, {int64_t{c.heads} * of_q.rows, of_q.rows, 1}};
  if (c.d_lse) a.d_lse = {d_lse.data, a.lse.strides};
  a.scale = float(s.scale);
  a.gradient_scale = a.scale * cuda::DropoutParams::of(s.dropout).scale;
  a.gradient_scale_of_one_key = c.sink || c.d_lse ? a.gradient_scale : 0;
  a.softcap = c.softcap;
  a.mask = c.mask();
  a.dropout = s.dropout;
  a.deterministic = c.deterministic;
  if (c.sink) a.has_sink = true, a.sink = sink.data, a.d_sink = d_sink.data;
  a.seqlen_q = c.seqlen_q;
  a.seqlen_k = c.seqlen_k;
  a.varlen = c.varlen != nullptr;
  a.sequences = c.batches;
  const DeviceArray<int> cu_q(of_q.cu), cu_k(of_k.cu), used_q(of_q.used), used_k(of_k.used);
  const auto lengths = [&](const SideLayout& of, int seqlen, bool packed, const int* cu,
                           const int* used) {
    Lengths l{.max = seqlen, .total = int64_t(of.all_rows())};
    l.varlen = a.varlen;
    l.in_one_tensor = packed;
    if (packed) l.cu_seqlens = cu;
    if (a.varlen) l.seqused = used;
    return l;
  };
  a.lengths_q = lengths(of_q, c.seqlen_q, packed_q, cu_q.data, used_q.data);
  a.lengths_k = lengths(of_k, c.seqlen_k, packed_k, cu_k.data, used_k.data);
  const PlannedBackward plan = subject.plan(a, c.sms > 0 ? c.sms : device_sms());
  DeviceArray<char> workspace(size_t(plan.workspace_bytes));
  std::vector<T> first_dq, first_dk, first_dv;
  std::vector<float> first_d_sink;
  bool ok = true;
  std::string where;
  for (int run = 0; run < 1 + repeats; ++run) {
    const Watchdog watchdog("case " + name);
    CHECK_CUDA(plan.launch(workspace.data));
    CHECK_CUDA(cudaDeviceSynchronize());
    if (run == 0) {
      first_dq = dq.fetch();
      first_dk = dk.fetch();
      first_dv = dv.fetch();
      first_d_sink = d_sink.fetch();
    } else if ((c.deterministic &&
                std::memcmp(first_dq.data(), dq.fetch().data(), dq.count * sizeof(T)) != 0) ||
               (!plan.adds_keys &&
                (std::memcmp(first_dk.data(), dk.fetch().data(), dk.count * sizeof(T)) != 0 ||
                 std::memcmp(first_dv.data(), dv.fetch().data(), dv.count * sizeof(T)) != 0)) ||
               (c.sink && first_d_sink != d_sink.fetch())) {
      ok = false;
      where = "a repeat gives other bits; ";
    }
  }
  const Verdict verdicts[] = {
      compare<T>("dq", dq.fetch(), xq.fetch(), nq.fetch(), s.head_dim, 0.5),
      compare<T>("dk", dk.fetch(), xk.fetch(), nk.fetch(), s.head_dim, 0.5),
      compare<T>("dv", dv.fetch(), xv.fetch(), nv.fetch(), s.head_dim_v, 0.5)};
  if (c.sink) where += compare_sinks(first_d_sink, xs.fetch(), ns.fetch(), terms.fetch());
  ok &= where.empty();
  for (const Verdict& verdict : verdicts) {
    ok &= verdict.ok;
    where += verdict.where + (verdict.ok ? "" : "; ");
    *worst = std::max(*worst, verdict.worst_row);
  }
  if (ok && !verbose) return true;
  std::printf("%s d%d%s %-34s %s dq %.1e/%.1e dk %.1e/%.1e dv %.1e/%.1e %s\n",
              std::is_same_v<T, __half> ? "fp16" : "bf16", s.head_dim, subject.variant,
              name.c_str(), ok ? "ok  " : "FAIL", verdicts[0].error, verdicts[0].naive_error,
              verdicts[1].error, verdicts[1].naive_error, verdicts[2].error,
              verdicts[2].naive_error, where.c_str());
  std::fflush(stdout);
  return ok;
}

struct Tally {
  int checks = 0, failures = 0;
  double worst = 0;
};

// The end of a program: a line, and its exit status.
inline int finish(const Tally& tally) {
  std::printf("worst row: %.2f of the error allowed\n", tally.worst);
  std::printf("%d checks, %d failures\n", tally.checks, tally.failures);
  return tally.failures != 0;
}

}  // namespace fa3::testing
