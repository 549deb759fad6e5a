// SPDX-License-Identifier: Apache-2.0
// Checks the backward's kernels against the oracle, row by row, and times them. Needs a GPU and
// nothing else.
//   fa3_gpu_check_backward [--only TEXT] [--rows FIRST END] [--repeats N] [--verbose] [--time]
// --only: cases whose name contains TEXT. --rows: of the kernel table, half-open. --repeats: runs of each case whose dK and dV must be the
// same bits, and dQ where it is to be deterministic. --verbose: a line for every case, not only for
// those that fail. --time: speed instead.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/backward_reference.cuh"
#include "cuda/watchdog.h"
#include "engine/hopper/backward/launch_backward.h"

namespace fa3::testing {
namespace {

using hopper::BackwardArguments;
using hopper::BackwardKernel;
using hopper::Element;
using hopper::TensorSpan;
using hopper::Variant;

constexpr const char* kVariants[hopper::kNumVariants] = {"", " general", " capped"};

#define CHECK_CUDA(call)                                                                   \
  do {                                                                                     \
    const cudaError_t error_ = (call);                                                     \
    if (error_ != cudaSuccess) {                                                           \
      std::printf("FAILED %s line %d: %s\n", #call, __LINE__, cudaGetErrorString(error_)); \
      std::fflush(stdout);                                                                 \
      _exit(2);                                                                            \
    }                                                                                      \
  } while (0)

// Filled with NaN.
template <typename T>
struct DeviceArray {
  T* data = nullptr;
  size_t count;
  explicit DeviceArray(size_t n) : count(n) {
    CHECK_CUDA(cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(T)));
    CHECK_CUDA(cudaMemset(data, 0xff, n * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    CHECK_CUDA(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data); }
  void clear() { CHECK_CUDA(cudaMemset(data, 0, count * sizeof(T))); }
  std::vector<T> fetch() const {
    std::vector<T> host(count);
    CHECK_CUDA(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
};

template <typename T>
std::vector<T> random_values(size_t count, float sigma, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<T> values(count);
  for (T& x : values) x = T(normal(engine));
  return values;
}

// Lengths of their own: packed one after the other, or each in a batch entry of the longest length.
struct Side {
  std::vector<int> owned;
  std::vector<int> used;  // empty: all
  int spare = 0;          // packed rows that no sequence owns
  bool packed = true;
};

struct BackwardCase {
  int batches, heads, kv_heads, seqlen_q, seqlen_k;
  bool causal = false;
  int head_dim_less = 0;  // columns less than the kernel's
  float q_sigma = 1.0f;
  bool d_lse = false;
  bool deterministic = false;
  int left = -1, right = -1;
  float softcap = 0.0f;
  bool sink = false;
  const char* ragged = nullptr;  // its name; then lengths come from:
  Side q, k;

  std::string name() const {
    char text[200];
    std::snprintf(text, sizeof text, "b%d h%d:%d %dx%d%s%s%s%s%s%s%s%s%s%s", batches, heads,
                  kv_heads, seqlen_q, seqlen_k, causal ? " causal" : "",
                  left >= 0 ? (" left " + std::to_string(left)).c_str() : "",
                  right >= 0 ? (" right " + std::to_string(right)).c_str() : "",
                  softcap > 0 ? (" softcap " + std::to_string(int(softcap))).c_str() : "",
                  sink ? " sink" : "", head_dim_less ? " short-head" : "",
                  q_sigma != 1.0f ? " sigma" : "", d_lse ? " dlse" : "",
                  deterministic ? " deterministic" : "", ragged ? ragged : "");
    return text;
  }
  MaskRuleOf<int> mask() const { return {left, causal ? 0 : right}; }
  bool dense() const { return !ragged && left < 0 && right < 0 && softcap == 0; }
};

int longest(const std::vector<int>& lengths) {
  return *std::max_element(lengths.begin(), lengths.end());
}

BackwardCase ragged_case(const char* name, int heads, int kv_heads, const Side& q, const Side& k) {
  BackwardCase c{int(q.owned.size()), heads, kv_heads, longest(q.owned), longest(k.owned)};
  c.ragged = name;
  c.q = q;
  c.k = k;
  return c;
}

std::vector<int> many_lengths(int count, int longest, int seed) {
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back((i * 7919 + seed) % (longest + 1));
  return lengths;
}

// Windows, softcap, sinks and lengths; memory that belongs to no sequence is NaN.
std::vector<BackwardCase> masked_cases() {
  std::vector<BackwardCase> all;
  const auto add = [&](BackwardCase c, auto change) {
    change(c);
    all.push_back(c);
    c.deterministic = !c.deterministic;
    all.push_back(c);
  };
  const auto window = [](int left, int right) {
    return [=](BackwardCase& c) { c.left = left, c.right = right; };
  };
  add({1, 1, 1, 64, 128}, window(10, 5));
  add({2, 2, 2, 700, 700, true}, window(128, -1));
  add({1, 3, 1, 500, 900}, window(200, 77));
  add({1, 2, 1, 1000, 600}, window(333, -1));  // queries that see no key
  add({1, 2, 2, 300, 1100}, window(100, 30));  // keys that no query sees
  add({1, 2, 2, 600, 600}, window(-1, 100));
  add({1, 2, 2, 400, 350}, window(0, 0));
  add({1, 8, 1, 391, 591, true}, window(60, -1));
  for (int s = 1; s <= 300; s += 37) add({1, 1, 1, s, 301 - s}, window(s / 3, 40));
  const auto sink = [](BackwardCase& c) { c.sink = true; };
  add({2, 6, 2, 300, 400}, sink);
  add({1, 4, 1, 400, 300, true, 0, 1.0f, true}, sink);
  add({1, 2, 2, 300, 300, true}, [](BackwardCase& c) { c.sink = true, c.left = 50; });
  const auto cap = [](float softcap, float q_sigma) {
    return [=](BackwardCase& c) { c.softcap = softcap, c.q_sigma = q_sigma; };
  };
  add({1, 1, 1, 64, 128}, cap(30, 1));
  add({2, 4, 2, 300, 500}, cap(30, 1));
  add({1, 2, 2, 500, 500, true}, cap(8, 8));      // large scores
  add({1, 2, 2, 500, 500, true}, cap(50, 0.1f));  // small ones
  add({1, 2, 1, 400, 500, true},
      [](BackwardCase& c) { c.softcap = 15, c.left = 150, c.sink = true, c.d_lse = true; });

  const Side q{.owned = {300, 0, 1, 200, 64, 0}, .spare = 3};
  const Side k{.owned = {301, 5, 0, 200, 500, 0}, .spare = 70};
  const Side q_used{.owned = {300, 0, 7, 200, 64, 250}, .used = {171, 0, 7, 64, 0, 249}};
  const Side k_used{.owned = {301, 5, 10, 200, 500, 400}, .used = {200, 5, 0, 199, 413, 80}};
  const auto nothing = [](BackwardCase&) {};
  const auto causal = [](BackwardCase& c) { c.causal = true; };
  add(ragged_case(" packed", 2, 2, q, k), nothing);
  add(ragged_case(" packed", 3, 1, q, k), causal);
  add(ragged_case(" packed", 8, 2, q, k), [](BackwardCase& c) { c.causal = c.d_lse = true; });
  add(ragged_case(" packed-used", 2, 2, q_used, k_used), nothing);
  add(ragged_case(" packed-used", 4, 1, q_used, k_used), causal);
  add(ragged_case(" packed", 2, 1, q, k), window(90, 20));
  add(ragged_case(" packed-used", 2, 2, q_used, k_used), sink);
  add(ragged_case(" packed", 2, 2, q, k), cap(20, 1));
  add(ragged_case(" packed-one-key", 2, 2, {.owned = {5, 64, 0, 3}}, {.owned = {1, 1, 1, 1}}),
      nothing);
  add(ragged_case(" packed-many-short", 2, 2, {.owned = many_lengths(400, 6, 3)},
                  {.owned = many_lengths(400, 9, 5)}),
      causal);
  add(ragged_case(" packed-queries", 2, 2, {.owned = {100, 1, 0, 65}},
                  {.owned = {300, 300, 300, 300}, .used = {300, 0, 77, 128}, .packed = false}),
      nothing);
  add(ragged_case(" packed-keys", 2, 2,
                  {.owned = {200, 200, 200, 200}, .used = {200, 0, 77, 128}, .packed = false},
                  {.owned = {100, 1, 0, 450}}),
      causal);
  add(ragged_case(" used", 2, 2,
                  {.owned = {300, 300, 300, 300}, .used = {0, 300, 64, 65}, .packed = false},
                  {.owned = {500, 500, 500, 500}, .used = {400, 500, 0, 128}, .packed = false}),
      causal);
  return all;
}

std::vector<BackwardCase> cases() {
  std::vector<BackwardCase> all{
      {1, 1, 1, 64, 128},  // one step, one thread block: a hang shows here
      {1, 1, 1, 1, 1},
      {1, 1, 1, 128, 128},
      {1, 1, 1, 512, 128},
      {1, 1, 1, 64, 256},
      {1, 1, 1, 64, 128, true},
      {1, 2, 2, 512, 512},
      {1, 2, 2, 512, 512, true},
      {2, 3, 3, 300, 400},
      {2, 3, 3, 300, 400, true},
      {2, 3, 3, 400, 300, true},  // rows without keys
      {1, 4, 2, 192, 256},
      {1, 4, 1, 200, 333, true},
      {1, 8, 1, 65, 129, true},
      {2, 2, 2, 257, 129, false, 8},
      {2, 2, 2, 129, 257, true, 24},
      {1, 2, 2, 500, 500, true, 0, 8.0f},
      {1, 2, 1, 256, 384, false, 0, 1.0f, true},
      {1, 2, 2, 1024, 1024, true},
      {1, 2, 2, 1024, 1024},
      {3, 20, 20, 128, 128, true},  // more tiles than multiprocessors, with
      {3, 60, 60, 100, 130, true},
  };
  for (const bool causal : {false, true}) {
    all.push_back({1, 1, 1, 200, 300, causal, 0, 1.0f, false, true});
    all.push_back({2, 4, 2, 700, 900, causal, 0, 1.0f, false, true});
    all.push_back({2, 10, 10, 1000, 2100, causal, 0, 1.0f, false, true});  // several waves
  }
  for (int s = 2; s <= 200; s += s < 10 ? 1 : s < 60 ? 7 : 13) {
    all.push_back({1, 2, 1, s, 201 - s});
    all.push_back({1, 1, 1, s, 150, true});
    all.push_back({1, 1, 1, 150, s, true});
  }
  for (const BackwardCase& c : masked_cases()) all.push_back(c);
  return all;
}

// What sequence `b` of a case has of one side's tensor.
struct SideLayout {
  std::vector<int> cu;
  std::vector<int64_t> begin;
  std::vector<int> used;
  int batches;
  int rows;

  SideLayout(const BackwardCase& c, const Side& side, int seqlen)
      : batches(c.batches), rows(seqlen) {
    const bool packed = c.ragged && side.packed;
    cu.push_back(0);
    for (int b = 0; b < c.batches; ++b) {
      const int owned = c.ragged ? side.owned[b] : seqlen;
      begin.push_back(packed ? cu[b] : int64_t{b} * seqlen);
      used.push_back(side.used.empty() ? owned : side.used[b]);
      cu.push_back(cu[b] + owned);
    }
    if (packed) batches = 1, rows = cu.back() + side.spare;
  }
  size_t all_rows() const { return size_t(batches) * rows; }
  bool uses(size_t row) const {
    for (size_t b = 0; b < begin.size(); ++b) {
      if (row >= size_t(begin[b]) && row < size_t(begin[b] + used[b])) return true;
    }
    return false;
  }
  // NaN where no sequence uses the row, which has `count` elements.
  template <typename T>
  std::vector<T> poisoned(std::vector<T> values, size_t count) const {
    for (size_t row = 0; row < all_rows(); ++row) {
      if (!uses(row)) std::fill_n(values.begin() + row * count, count, T(NAN));
    }
    return values;
  }
};

TensorSpan span_of(void* data, int batches, int rows, int heads, int columns) {
  return {data,
          batches,
          rows,
          heads,
          columns,
          int64_t{rows} * heads * columns,
          int64_t{heads} * columns,
          columns};
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
  const bool packed_q = c.ragged && c.q.packed, packed_k = c.ragged && c.k.packed;
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
                  c.mask().left,
                  c.mask().right,
                  0,
                  c.softcap,
                  packed_q,
                  int64_t(of_q.all_rows()),
                  device_spans.data};
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

  BackwardArguments a;
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
  a.deterministic = c.deterministic;
  if (c.sink) a.has_sink = true, a.sink = sink.data, a.d_sink = d_sink.data;
  a.seqlen_q = c.seqlen_q;
  a.seqlen_k = c.seqlen_k;
  a.ragged = c.ragged != nullptr;
  a.sequences = c.batches;
  const DeviceArray<int> cu_q(of_q.cu), cu_k(of_k.cu), used_q(of_q.used), used_k(of_k.used);
  const auto lengths = [&](const SideLayout& of, int seqlen, bool packed, const int* cu,
                           const int* used) {
    Lengths l{.max = seqlen, .total = int64_t(of.all_rows())};
    l.ragged = a.ragged;
    l.in_one_tensor = packed;
    if (packed) l.cu_seqlens = cu;
    if (a.ragged) l.seqused = used;
    return l;
  };
  a.lengths_q = lengths(of_q, c.seqlen_q, packed_q, cu_q.data, used_q.data);
  a.lengths_k = lengths(of_k, c.seqlen_k, packed_k, cu_k.data, used_k.data);
  DeviceArray<char> workspace(size_t(backward_workspace_bytes(kernel.config, a)));
  a.workspace = workspace.data;
  std::vector<T> first_dq, first_dk, first_dv;
  std::vector<float> first_d_sink;
  bool ok = true;
  std::string where;
  for (int run = 0; run < 1 + repeats; ++run) {
    const Watchdog watchdog("case " + name);
    CHECK_CUDA(launch_backward(kernel, a, 0));
    CHECK_CUDA(cudaDeviceSynchronize());
    if (run == 0) {
      first_dq = dq.fetch();
      first_dk = dk.fetch();
      first_dv = dv.fetch();
      first_d_sink = d_sink.fetch();
    } else if ((c.deterministic &&
                std::memcmp(first_dq.data(), dq.fetch().data(), dq.count * sizeof(T)) != 0) ||
               std::memcmp(first_dk.data(), dk.fetch().data(), dk.count * sizeof(T)) != 0 ||
               std::memcmp(first_dv.data(), dv.fetch().data(), dv.count * sizeof(T)) != 0 ||
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

// The kernels that do a case: the least general, and for bf16 dense cases the general one too.
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

struct Tally {
  int checks = 0, failures = 0;
  double worst = 0;
};

template <typename T>
void check_row(int row, Element element, const std::string& only, int repeats, bool verbose,
               Tally* tally) {
  for (const BackwardCase& c : cases()) {
    if (c.name().find(only) == std::string::npos) continue;
    for (const BackwardKernel& kernel : kernels_of(row, element, c)) {
      tally->failures += !check<T>(kernel, c, repeats, verbose, &tally->worst);
      ++tally->checks;
    }
  }
}

int check_all(const std::string& only, int repeats, bool verbose, int first_row, int end_row) {
  Tally tally;
  for (int row = first_row; row < std::min(end_row, int(hopper::kBackwardTable.size())); ++row) {
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

// Random normal bf16 tensors of one size, generated on the GPU: speed depends on the data.
__global__ void fill_normal(__nv_bfloat16* data, size_t count, uint32_t seed, float sigma) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + uint64_t{seed} * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    const float u = (float(uint32_t(x)) + 1.0f) * 0x1p-32f, w = float(uint32_t(x >> 32)) * 0x1p-32f;
    data[i] = __nv_bfloat16(sigma * sqrtf(-2 * logf(u)) * cosf(6.2831853f * w));
  }
}

__global__ void fill_lse(float* lse, size_t count, int seqlen, bool causal) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    lse[i] = logf(causal ? float(i % seqlen + 1) : float(seqlen)) + 0.5f;  // of unit scores
  }
}

class Timing {
 public:
  Timing() {
    CHECK_CUDA(cudaEventCreate(&begin_));
    CHECK_CUDA(cudaEventCreate(&end_));
    CHECK_CUDA(cudaMalloc(&flush_, kFlushBytes));
  }
  // Median milliseconds of some runs on a cold L2 cache.
  template <typename F>
  float median(const std::string& what, int runs, F launch) {
    const Watchdog watchdog("timing of " + what, 40);
    launch();
    std::vector<float> times;
    for (int i = 0; i < runs; ++i) {
      CHECK_CUDA(cudaMemsetAsync(flush_, i, kFlushBytes));
      CHECK_CUDA(cudaEventRecord(begin_));
      launch();
      CHECK_CUDA(cudaEventRecord(end_));
      CHECK_CUDA(cudaEventSynchronize(end_));
      float ms;
      CHECK_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
      times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  static constexpr size_t kFlushBytes = 256 << 20;
  cudaEvent_t begin_, end_;
  void* flush_;
};

struct TimedKernel {
  std::string name;
  BackwardKernel kernel;
};

int time_all(const std::string& only) {
  std::vector<TimedKernel> kernels;
  for (int row = 0; row < int(hopper::kBackwardTable.size()); ++row) {
    kernels.push_back({"table", hopper::backward_kernel_at(row, Element::kBf16, Variant::kDense)});
  }
  Timing timing;
  constexpr int kTokens = 16384, kColumns = 2048;
  const size_t count = size_t{kTokens} * kColumns;
  DeviceArray<__nv_bfloat16> q(count), k(count), v(count), o(count), d_o(count), dq(count),
      dk(count), dv(count);
  for (auto* tensor : {&q, &k, &v, &d_o, &o}) {
    fill_normal<<<1024, 256>>>(tensor->data, count, unsigned(tensor - &q),
                               tensor == &o ? 0.02f : 1);
  }
  DeviceArray<float> lse(size_t{kTokens} * kColumns / 64);
  std::printf("TFLOP/s, bf16, b*s = 16k, h*d = 2048. pre, main, post: microseconds\n");
  std::printf("%-14s %4s %6s %6s %8s %8s %8s %8s %8s %8s\n", "kernel", "d", "s", "mask", "pre",
              "main", "post", "all us", "main TF", "all TF");
  for (const TimedKernel& timed : kernels) {
    const int d = timed.kernel.config.head_dim, heads = kColumns / d;
    if (d != timed.kernel.config.head_dim_v) continue;
    for (const bool causal : {false, true}) {
      for (int deterministic = 0; deterministic < 2; ++deterministic)
        for (int s = 512; s <= 16384; s *= d % 64 == 0 ? 2 : 4) {
          if (deterministic && s != 2048 && s != 16384) continue;
          char what[80];
          std::snprintf(what, sizeof what, "%s d%d s%d %s", timed.name.c_str(), d, s,
                        causal ? "causal" : "full");
          if (std::string(what).find(only) == std::string::npos) continue;
          const int b = kTokens / s;
          fill_lse<<<256, 256>>>(lse.data, size_t(b) * heads * s, s, causal);
          BackwardArguments a;
          const auto span = [&](auto& t) { return span_of(t.data, b, s, heads, d); };
          a.q = span(q), a.k = span(k), a.v = span(v), a.o = span(o), a.d_o = span(d_o);
          a.dq = span(dq), a.dk = span(dk), a.dv = span(dv);
          a.lse = {lse.data, {int64_t{heads} * s, s, 1}};
          a.scale = a.gradient_scale = float(1 / std::sqrt(double(d)));
          if (causal) a.mask.right = 0;
          a.seqlen_q = a.seqlen_k = s;
          a.deterministic = deterministic;
          DeviceArray<char> workspace(size_t(backward_workspace_bytes(timed.kernel.config, a)));
          a.workspace = workspace.data;
          constexpr int kRuns = 11;
          const auto run = [&](int launches) {
            return 1e3f * timing.median(what, kRuns, [&] {
              CHECK_CUDA(launch_backward(timed.kernel, a, 0, launches));
            });
          };
          const float all = run(hopper::kAllLaunches);
          if (deterministic) {
            std::printf("%-14s %4d %6d %6s %44.1f %8s %8.0f\n", "deterministic", d, s,
                        causal ? "causal" : "full", all, "",
                        10.0 * b * heads * double(s) * s * d / (causal ? 2 : 1) / all * 1e-6);
            continue;
          }
          const float pre = run(hopper::kPreprocess);
          const float main = run(hopper::kMain);
          const float post = run(hopper::kPostprocess);
          const double flops = 10.0 * b * heads * double(s) * s * d / (causal ? 2 : 1);
          std::printf("%-14s %4d %6d %6s %8.1f %8.1f %8.1f %8.1f %8.0f %8.0f\n", timed.name.c_str(),
                      d, s, causal ? "causal" : "full", pre, main, post, all, flops / main * 1e-6,
                      flops / all * 1e-6);
          std::fflush(stdout);
        }
    }
  }
  return 0;
}

}  // namespace
}  // namespace fa3::testing

int main(int argc, char** argv) {
  std::string only;
  bool time = false, verbose = false;
  int repeats = 1, first_row = 0, end_row = 99;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--time") {
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
          "unknown argument %s; known: --only TEXT, --rows FIRST END, --repeats N, --verbose, "
          "--time\n",
          argv[i]);
      return 2;
    }
  }
  if (time) return fa3::testing::time_all(only);
  return fa3::testing::check_all(only, repeats, verbose, first_row, end_row);
}
