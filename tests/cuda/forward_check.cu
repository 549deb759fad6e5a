// SPDX-License-Identifier: Apache-2.0
// Checks forward kernels against the oracle, row by row, on data made to reach every branch. Needs a
// GPU and nothing else. Arguments, all optional: first and end row of the kernel table, which the
// ablation's variants continue (end -1: without them), a substring of the case names, how often to
// repeat each launch and compare bits, and a file of results' digests: written if it is not there,
// else to be met bit for bit.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/forward_cases.cuh"
#include "cuda/forward_reference.cuh"
#ifndef FA3_DISTURB
#include "engine/hopper/ablation/ablation.h"
#endif
#include "engine/hopper/launch_forward.h"

namespace fa3::testing {
namespace {

using hopper::Element;
using hopper::ForwardArguments;
using hopper::ForwardKernel;
using hopper::TensorSpan;

#define CHECK_CUDA(call)                                                                   \
  do {                                                                                     \
    const cudaError_t error_ = (call);                                                     \
    if (error_ != cudaSuccess) {                                                           \
      std::printf("FAILED %s line %d: %s\n", #call, __LINE__, cudaGetErrorString(error_)); \
      std::exit(2);                                                                        \
    }                                                                                      \
  } while (0)

template <typename T>
struct DeviceTensor {
  T* data = nullptr;
  explicit DeviceTensor(size_t count) {
    CHECK_CUDA(cudaMalloc(&data, count * sizeof(T)));
    CHECK_CUDA(cudaMemset(data, 0xff, count * sizeof(T)));  // NaN
  }
  explicit DeviceTensor(const std::vector<T>& host) : DeviceTensor(host.size()) {
    CHECK_CUDA(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceTensor(const DeviceTensor&) = delete;
  ~DeviceTensor() { cudaFree(data); }
  std::vector<T> fetch(size_t count) const {
    std::vector<T> host(count);
    CHECK_CUDA(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
};

template <typename T>
TensorSpan span_of(const HostTensor<T>& t, T* data) {
  return {data,
          t.batches,
          t.rows,
          t.heads,
          t.columns,
          t.stride.batch_stride,
          t.stride.row_stride,
          t.stride.head_stride};
}

struct Verdict {
  bool ok = true;
  double worst_error = 0, worst_ratio = 0, lse_error = 0;
  std::string where;

  void fail(const char* what, int64_t row, double got, double expected) {
    if (ok) {
      char text[160];
      std::snprintf(text, sizeof text, "%s at row %lld: got %g, expected %g", what, (long long)row,
                    got, expected);
      where = text;
    }
    ok = false;
  }
};

template <typename T>
Verdict compare(const Case& c, HostTensor<T>& o, const std::vector<float>& lse,
                const std::vector<double>& exact, const std::vector<double>& naive,
                const std::vector<double>& exact_lse, const std::vector<double>& largest_score,
                bool head_major) {
  Verdict verdict;
  const double kUlp = std::is_same_v<T, __half> ? 0x1p-10 : 0x1p-7;  // of numbers in [1, 2)
  int64_t row = 0;
  for (int b = 0; b < o.batches; ++b) {
    for (int h = 0; h < o.heads; ++h) {
      for (int r = 0; r < o.rows; ++r, ++row) {
        double error = 0, naive_error = 0, norm = 0, one_ulp = 0;
        for (int i = 0; i < o.columns; ++i) {
          const double got = float(o.at(b, r, h, i));
          const double want = exact[row * o.columns + i];
          if (!std::isfinite(want) || !std::isfinite(got)) {
            if (std::isfinite(want) != std::isfinite(got))
              verdict.fail("finiteness", row, got, want);
            continue;
          }
          error += (got - want) * (got - want);
          const double n = naive[row * o.columns + i] - want;
          naive_error += n * n;
          norm += want * want;
          const double ulp = std::ldexp(kUlp, want == 0 ? -126 : std::ilogb(want));
          one_ulp += ulp * ulp;
        }
        // Twice a naive kernel's error, or one unit in the last place of every element.
        const double allowed = std::sqrt(std::max(4 * naive_error, one_ulp));
        if (std::sqrt(error) > allowed) verdict.fail("error", row, std::sqrt(error), allowed);
        if (norm > 0) {
          verdict.worst_error = std::max(verdict.worst_error, std::sqrt(error / norm));
          verdict.worst_ratio = std::max(verdict.worst_ratio, std::sqrt(error) / allowed);
        } else if (error != 0) {
          verdict.fail("not zero", row, std::sqrt(error), 0);
        }
        const double want = exact_lse[row], got = lse[row];
        if (std::isnan(want) || std::isinf(want)) {
          if (std::isinf(want) ? got != want : std::isfinite(got))
            verdict.fail("lse", row, got, want);
        } else {
          const double difference = std::fabs(got - want);
          if (!(difference <= 1e-3 + 0x1p-20 * largest_score[row]))
            verdict.fail("lse", row, got, want);
          verdict.lse_error = std::max(verdict.lse_error, difference);
        }
      }
    }
  }
  // Padding must stay poisoned.
  if (head_major) {
    for (int b = 0; b < o.batches; ++b)
      for (int h = 0; h < o.heads; ++h)
        for (int r = 0; r <= o.rows; ++r)
          for (int i = r < o.rows ? o.columns : 0; i < o.columns + 8; ++i)
            if (!std::isnan(float(o.at(b, r, h, i)))) verdict.fail("padding written", r, i, 0);
  }
  return verdict;
}

// One number for the bits of a result (FNV-1a).
template <typename T>
uint64_t digest(const std::vector<T>& data, uint64_t seed = 0xcbf29ce484222325u) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
  for (size_t i = 0; i < data.size() * sizeof(T); ++i) seed = (seed ^ bytes[i]) * 0x100000001b3u;
  return seed;
}

// Digests by kernel and case, of an earlier run of another build.
class Digests {
 public:
  explicit Digests(const char* path) : path_(path) {
    std::ifstream file(path);
    compares_ = file.good();
    std::string name;
    for (uint64_t value; file >> name >> value;) known_[name] = value;
  }
  ~Digests() {
    if (path_.empty() || compares_) return;
    std::ofstream file(path_);
    for (const auto& [name, value] : known_) file << name << ' ' << value << '\n';
  }
  // Whether this is what was there before, if there was a before.
  bool meets(const std::string& name, uint64_t value) {
    if (!compares_) known_[name] = value;
    const auto known = known_.find(name);
    if (known == known_.end()) return true;
    ++compared_;
    return known->second == value;
  }
  int compared() const { return compares_ ? compared_ : 0; }

 private:
  std::string path_;
  bool compares_ = false;
  int compared_ = 0;
  std::map<std::string, uint64_t> known_;
};

std::string name_of(const hopper::ForwardConfig& g, const char* of_case) {
  char text[120];
  std::snprintf(text, sizeof text, "%s-d%d-%d-%dx%d-%s",
                g.element == Element::kFp16 ? "fp16" : "bf16", g.head_dim, g.head_dim_v, g.block_m,
                g.block_n, of_case);
  return text;
}

template <typename T>
Verdict run(const ForwardKernel& kernel, const Case& c, int repeats, Digests* digests) {
  const int d = c.head_dim > 0 ? c.head_dim : kernel.config.head_dim + c.head_dim;
  const int dv = c.head_dim_v > 0 ? c.head_dim_v : kernel.config.head_dim_v + c.head_dim_v;
  const float scale = 1.0f / std::sqrt(float(d));
  HostTensor<T> q(c.batches, c.heads, c.seqlen_q, d, c.head_major);
  HostTensor<T> k(c.batches, c.kv_heads, c.seqlen_k, d, c.head_major);
  HostTensor<T> v(c.batches, c.kv_heads, c.seqlen_k, dv, c.head_major);
  HostTensor<T> o(c.batches, c.heads, c.seqlen_q, dv, c.head_major);
  fill(c, scale, q, k, v, unsigned(std::hash<std::string>{}(c.name)));

  DeviceTensor<T> dq(q.data), dk(k.data), dv_(v.data), d_o(o.data.size());
  const size_t rows = size_t(c.batches) * c.heads * c.seqlen_q;
  DeviceTensor<float> d_lse(rows);
  DeviceTensor<double> exact(rows * dv), naive(rows * dv), exact_lse(rows), largest(rows);
  const ReferenceProblem problem{c.batches, c.heads,  c.kv_heads, c.seqlen_q, c.seqlen_k, d,
                                 dv,        q.stride, k.stride,   v.stride,   scale,      c.causal};
  constexpr int kReadAtOnce = 8;  // at most, by the unrolled loop
  const int smem = (c.seqlen_k + kReadAtOnce - 1) / kReadAtOnce * kReadAtOnce * int(sizeof(double));
  CHECK_CUDA(cudaFuncSetAttribute(reference_attention<T>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
  reference_attention<T><<<dim3(c.seqlen_q, c.heads, c.batches), 256, smem>>>(
      problem, dq.data, dk.data, dv_.data, exact.data, naive.data, exact_lse.data, largest.data);
  CHECK_CUDA(cudaDeviceSynchronize());

  ForwardArguments arguments;
  arguments.q = span_of(q, dq.data);
  arguments.k = span_of(k, dk.data);
  arguments.v = span_of(v, dv_.data);
  arguments.o = span_of(o, d_o.data);
  arguments.lse = d_lse.data;
  arguments.lse_batch_stride = int64_t(c.heads) * c.seqlen_q;
  arguments.lse_head_stride = c.seqlen_q;
  arguments.seqlen_k = c.seqlen_k;
  arguments.heads_per_kv_head = c.heads / c.kv_heads;
  arguments.scale = scale;
  arguments.causal = c.causal;
  DeviceTensor<char> workspace(
      hopper::forward_workspace_bytes(hopper::forward_num_tiles(kernel.config, arguments)));
  arguments.workspace = workspace.data;
  CHECK_CUDA(hopper::launch_forward(kernel, arguments, 0));
  CHECK_CUDA(cudaDeviceSynchronize());
  o.data = d_o.fetch(o.data.size());
  const std::vector<float> lse = d_lse.fetch(rows);
  Verdict verdict = compare(c, o, lse, exact.fetch(rows * dv), naive.fetch(rows * dv),
                            exact_lse.fetch(rows), largest.fetch(rows), c.head_major);
  if (!digests->meets(name_of(kernel.config, c.name), digest(lse, digest(o.data)))) {
    verdict.fail("other bits than the other build", 0, 0, 0);
  }
  for (int i = 0; i < repeats; ++i) {
    CHECK_CUDA(cudaMemset(d_o.data, 0xff, o.data.size() * sizeof(T)));
    CHECK_CUDA(hopper::launch_forward(kernel, arguments, 0));
    CHECK_CUDA(cudaDeviceSynchronize());
    const std::vector<T> again = d_o.fetch(o.data.size());
    if (std::memcmp(again.data(), o.data.data(), again.size() * sizeof(T)) != 0) {
      verdict.fail("repeat differs", i, 0, 0);
    }
  }
  return verdict;
}

struct Tally {
  int done = 0;
  int failed = 0;
};

Tally check_kernel(const ForwardKernel& kernel, const char* pattern, int repeats,
                   Digests* digests) {
  const hopper::ForwardConfig& g = kernel.config;
  const bool fp16 = g.element == Element::kFp16;
  Tally tally;
  double ratio = 0, lse_error = 0;
  for (const Case& c : kCases) {
    if (!std::strstr(c.name, pattern)) continue;
    const Verdict verdict = fp16 ? run<__half>(kernel, c, repeats, digests)
                                 : run<__nv_bfloat16>(kernel, c, repeats, digests);
    ++tally.done;
    ratio = std::max(ratio, verdict.worst_ratio);
    lse_error = std::max(lse_error, verdict.lse_error);
    if (!verdict.ok) {
      ++tally.failed;
      std::printf("  %-24s FAIL %s\n", c.name, verdict.where.c_str());
    }
    std::fflush(stdout);
  }
  std::printf("%s d%d/%d %dx%d: %d of %d failed, worst error %.2f of allowed, lse %.1e\n",
              fp16 ? "fp16" : "bf16", g.head_dim, g.head_dim_v, g.block_m, g.block_n, tally.failed,
              tally.done, ratio, lse_error);
  return tally;
}

#ifdef FA3_DISTURB
constexpr Element kElements[] = {Element::kBf16};
#else
constexpr Element kElements[] = {Element::kFp16, Element::kBf16};
#endif

}  // namespace
}  // namespace fa3::testing

int main(int argc, char** argv) {
  using namespace fa3;
  const int rows = int(hopper::kForwardTable.size());
  const int first = argc > 1 ? std::atoi(argv[1]) : 0;
  const int wanted_end = argc > 2 ? std::atoi(argv[2]) : std::numeric_limits<int>::max();
  const int end = wanted_end < 0 ? rows : wanted_end;
  const char* pattern = argc > 3 ? argv[3] : "";
  const int repeats = argc > 4 ? std::atoi(argv[4]) : 1;
  testing::Digests digests(argc > 5 ? argv[5] : "");
  int done = 0, failed = 0;
  for (int row = first; row < std::min(end, rows); ++row) {
    for (const auto element : testing::kElements) {
      const auto tally = testing::check_kernel(hopper::forward_kernel_at(row, element), pattern,
                                               repeats, &digests);
      done += tally.done;
      failed += tally.failed;
    }
  }
#ifndef FA3_DISTURB
  const int variants = int(hopper::kAblation.size());
  for (int variant = std::max(first - rows, 0); variant < std::min(end - rows, variants);
       ++variant) {
    std::printf("%s: ", hopper::kAblation[variant].name);
    testing::Digests apart("");  // variants share their tile with kernels of the table
    const auto tally =
        testing::check_kernel(hopper::ablation_kernel_at(variant), pattern, repeats, &apart);
    done += tally.done;
    failed += tally.failed;
  }
#endif
  if (digests.compared() > 0) std::printf("%d met bit for bit\n", digests.compared());
  std::printf("%d checks, %d failures\n", done, failed);
  return failed != 0;
}
