// SPDX-License-Identifier: Apache-2.0
// The backward's three launches, each timed by itself and all together, on a cold L2 cache: what
// benchmarks/rivals.py, which times calls, does not show.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "cuda/device_array.cuh"
#include "cuda/watchdog.h"
#include "engine/hopper/launch/launch_backward.h"

namespace fa3::testing {

// Random normal bf16 tensors of one size, generated on the GPU: speed depends on the data.
static __global__ void fill_normal(__nv_bfloat16* data, size_t count, uint32_t seed, float sigma) {
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

static __global__ void fill_lse(float* lse, size_t count, int seqlen, bool causal) {
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

inline int time_all(const std::string& only) {
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
  std::printf("%-14s %4s %6s %6s %8s %8s %8s %8s %8s %8s\n", "", "d", "s", "mask", "pre", "main",
              "post", "all us", "main TF", "all TF");
  for (const hopper::BackwardRow& row : hopper::kBackward) {
    const hopper::BackwardConfig& c = row.kernel;
    if (c.tiles != hopper::Tiles::kDense || c.dropout() || c.wide() || is_for_some_dense_calls(c)) {
      continue;
    }
    const hopper::BackwardKernel kernel = hopper::backward_kernel_at(row, hopper::Element::kBf16);
    const int d = kernel.config.shape.head_dim, heads = kColumns / d;
    if (d != kernel.config.shape.head_dim_v) continue;
    for (const bool causal : {false, true}) {
      for (int deterministic = 0; deterministic < 2; ++deterministic)
        for (int s = 512; s <= 16384; s *= d % 64 == 0 ? 2 : 4) {
          if (deterministic && s != 2048 && s != 16384) continue;
          char what[80];
          std::snprintf(what, sizeof what, "d%d s%d %s", d, s, causal ? "causal" : "full");
          if (std::string(what).find(only) == std::string::npos) continue;
          const int b = kTokens / s;
          fill_lse<<<256, 256>>>(lse.data, size_t(b) * heads * s, s, causal);
          hopper::BackwardCall a;
          const auto span = [&](auto& t) { return span_of(t.data, b, s, heads, d); };
          a.q = span(q), a.k = span(k), a.v = span(v), a.o = span(o), a.d_o = span(d_o);
          a.dq = span(dq), a.dk = span(dk), a.dv = span(dv);
          a.lse = {lse.data, {int64_t{heads} * s, s, 1}};
          a.scale = a.gradient_scale = float(1 / std::sqrt(double(d)));
          if (causal) a.mask.right = 0;
          a.seqlen_q = a.seqlen_k = s;
          a.deterministic = deterministic;
          const hopper::BackwardPlan plan = plan_launches(kernel, a, device_sms());
          DeviceArray<char> workspace(size_t(plan.workspace.bytes));
          constexpr int kRuns = 11;
          const auto run = [&](int launches) {
            return 1e3f * timing.median(what, kRuns, [&] {
              CHECK_CUDA(launch_backward(plan, workspace.data, 0, launches));
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
          std::printf("%-14s %4d %6d %6s %8.1f %8.1f %8.1f %8.1f %8.0f %8.0f\n", "", d, s,
                      causal ? "causal" : "full", pre, main, post, all, flops / main * 1e-6,
                      flops / all * 1e-6);
          std::fflush(stdout);
        }
    }
  }
  return 0;
}

}  // namespace fa3::testing
