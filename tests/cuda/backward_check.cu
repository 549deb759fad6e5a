// SPDX-License-Identifier: Apache-2.0
// Checks the backward's kernels against the oracle, row by row, and times them. Needs a GPU and
// nothing else.
//   fa3_gpu_check_backward [--list] [--only TEXT] [--rows FIRST END] [--repeats N]
//                          [--verbose] [--time]
// --list: the rows of the kernel table. --only: cases with TEXT in their names. --rows: of the
// table, half-open. --repeats: launches of each case that must give the same bits: dQ in
// deterministic calls, dK and dV unless query heads are split. --verbose: a line for every case,
// not only for those that fail. --time: speed instead.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/backward_cases.h"
#include "cuda/backward_reference.cuh"
#include "cuda/backward_timing.cuh"
#include "cuda/device_array.cuh"
#include "cuda/watchdog.h"
#include "engine/hopper/instances/dropout_backward_table.h"
#include "engine/hopper/launch/launch_backward.h"

namespace fa3::testing {
namespace {

using hopper::BackwardCall;
using hopper::BackwardKernel;
using hopper::Element;
using hopper::TensorSpan;
using hopper::Variant;

constexpr const char* kVariants[hopper::kNumVariants] = {"", " general", " capped"};

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
  // Of sums that cancel, in float32: with one key dP and Delta are the same sum.
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
std::string compare_sinks(const std::vector<float>& got, const std::vector<double>& exact,
                          const std::vector<double>& naive, const std::vector<double>& terms) {
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
bool check(const BackwardKernel& kernel, const BackwardCase& c, int repeats, bool verbose,
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
                  kernel.config.head_dim - c.head_dim_less,
                  kernel.config.head_dim_v - c.head_dim_less,
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

  BackwardCall a;
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
  a.scale = a.gradient_scale = float(s.scale);
  a.gradient_scale_of_one_key = c.sink || c.d_lse ? a.scale : 0;
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
  const hopper::BackwardPlan plan = plan_launches(kernel, a, device_sms());
  DeviceArray<char> workspace(size_t(plan.workspace.bytes));
  std::vector<T> first_dq, first_dk, first_dv;
  std::vector<float> first_d_sink;
  bool ok = true;
  std::string where;
  for (int run = 0; run < 1 + repeats; ++run) {
    const Watchdog watchdog("case " + name);
    CHECK_CUDA(launch_backward(plan, workspace.data, 0));
    CHECK_CUDA(cudaDeviceSynchronize());
    if (run == 0) {
      first_dq = dq.fetch();
      first_dk = dk.fetch();
      first_dv = dv.fetch();
      first_d_sink = d_sink.fetch();
    } else if ((c.deterministic &&
                std::memcmp(first_dq.data(), dq.fetch().data(), dq.count * sizeof(T)) != 0) ||
               (!c.adds_keys() &&
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
              std::is_same_v<T, __half> ? "fp16" : "bf16", s.head_dim,
              kVariants[int(kernel.config.variant)], name.c_str(), ok ? "ok  " : "FAIL",
              verdicts[0].error, verdicts[0].naive_error, verdicts[1].error,
              verdicts[1].naive_error, verdicts[2].error, verdicts[2].naive_error, where.c_str());
  std::fflush(stdout);
  return ok;
}

// The rows of kBackwardTable, then those of kDropoutBackwardTable.
constexpr int kPlainRows = int(hopper::kBackwardTable.size());
constexpr int kRows = kPlainRows + int(hopper::kDropoutBackwardTable.size());

// The kernels of a row that do a case: the least general, and for bf16 dense cases the general one
// too.
std::vector<BackwardKernel> kernels_of(int row, Element element, const BackwardCase& c) {
  const auto at = [&](Variant variant) {
    return hopper::backward_kernel_at(row, element, variant);
  };
  if (c.softcap > 0) return {at(Variant::kCapped)};
  if (!c.dense()) return {at(Variant::kGeneral)};
  BackwardKernel dense = at(Variant::kDense);
  if (c.sink) dense.preprocess = at(Variant::kGeneral).preprocess;
  if (element == Element::kFp16) return {dense};
  return {dense, at(Variant::kGeneral)};
}

// A row with dropout has one variant; sinks are its general kernel's.
std::vector<BackwardKernel> dropout_kernels_of(int row, Element element, const BackwardCase& c) {
  const BackwardKernel kernel = hopper::dropout_backward_kernel_at(row, element);
  const Variant needed = c.softcap > 0          ? Variant::kCapped
                         : c.dense() && !c.sink ? Variant::kDense
                                                : Variant::kGeneral;
  const bool does = needed == kernel.config.variant ||
                    (needed == Variant::kDense && kernel.config.variant == Variant::kGeneral);
  if (!does) return {};
  return {kernel};
}

struct Tally {
  int checks = 0, failures = 0;
  double worst = 0;
};

template <typename T>
void check_row(int row, Element element, const std::string& only, int repeats, bool verbose,
               Tally* tally) {
  const bool drops = row >= kPlainRows;
  for (BackwardCase& c : cases()) {
    c.dropout = drops ? 0.3f : 0.0f;
    if (c.name().find(only) == std::string::npos) continue;
    for (const BackwardKernel& kernel :
         drops ? dropout_kernels_of(row - kPlainRows, element, c) : kernels_of(row, element, c)) {
      tally->failures += !check<T>(kernel, c, repeats, verbose, &tally->worst);
      ++tally->checks;
    }
  }
}

int check_all(const std::string& only, int repeats, bool verbose, int first_row, int end_row) {
  Tally tally;
  for (int row = first_row; row < std::min(end_row, kRows); ++row) {
    check_row<__nv_bfloat16>(row, Element::kBf16, only, repeats, verbose, &tally);
#ifndef FA3_DISTURB  // which knows bf16 alone: the protocol has no element type
    check_row<__half>(row, Element::kFp16, only, repeats, verbose, &tally);
#endif
    std::printf("row %d done: %d of %d failed so far\n", row, tally.failures, tally.checks);
    std::fflush(stdout);
  }
  std::printf("worst row: %.2f of the error allowed\n", tally.worst);
  std::printf("%d checks, %d failures\n", tally.checks, tally.failures);
  return tally.failures != 0;
}

// The rows of the kernel table: number, table, head dims of Q and of V. Needs no GPU.
void list_rows() {
  int number = 0;
  for (const auto& row : hopper::kBackwardTable) {
    std::printf("%d backward %d %d\n", number++, row.config.head_dim, row.config.head_dim_v);
  }
  for (const auto& row : hopper::kDropoutBackwardTable) {
    std::printf("%d dropout %d %d\n", number++, row.config.head_dim, row.config.head_dim_v);
  }
}

}  // namespace
}  // namespace fa3::testing

int main(int argc, char** argv) {
  std::string only;
  bool time = false, verbose = false;
  int repeats = 1, first_row = 0, end_row = 99;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--list") {
      fa3::testing::list_rows();
      return 0;
    } else if (flag == "--time") {
      time = true;
    } else if (flag == "--verbose") {
      verbose = true;
    } else if (flag == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else if (flag == "--rows" && i + 2 < argc) {
      first_row = std::atoi(argv[++i]);
      end_row = std::atoi(argv[++i]);
    } else if (flag == "--repeats" && i + 1 < argc) {
      repeats = std::atoi(argv[++i]);
    } else {
      std::printf(
          "unknown argument %s; known: --list, --only TEXT, --rows FIRST END, --repeats N, "
          "--verbose, --time\n",
          argv[i]);
      return 2;
    }
  }
  if (time) return fa3::testing::time_all(only);
  return fa3::testing::check_all(only, repeats, verbose, first_row, end_row);
}
