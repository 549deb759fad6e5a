// SPDX-License-Identifier: Apache-2.0
// The gradients of selected latent rows on a GPU, through the C interface: random calls beside
// double precision, each twice; deterministic ones three times, with the same bits, and once more
// with a number that is not finite; or, with --time, a table of times. Usage:
// fa3_gpu_check_latent_gradients
// [--calls N] [--seed N] | --time
#include <cuda_runtime.h>
#include <fa3/mla.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "cuda/device_array.cuh"
#include "cuda/watchdog.h"
#include "support/latent/gradient_call.h"

namespace fa3::testing {
namespace {

using Engine = std::mt19937_64;
using test::GradientCase;

template <class T>
T pick(Engine& random, std::initializer_list<T> from) {
  return from.begin()[random() % from.size()];
}

GradientCase random_case(uint64_t seed) {
  Engine random(seed);
  GradientCase c;
  c.seed = seed;
  c.dtype = random() % 3 == 0 ? FA3_FLOAT16 : FA3_BFLOAT16;
  c.dim = random() % 3 == 0 ? 512 : 576;
  c.batch = pick<int64_t>(random, {0, 0, 1, 2, 3});
  c.tokens = pick<int64_t>(random, {1, 1, 2, 5, 17});
  c.heads = pick<int64_t>(random, {1, 3, 8, 16, 33, 63, 64, 65, 127, 128});
  c.page_size = pick<int64_t>(random, {1, 3, 53, 64, 576});
  c.rows = pick<int64_t>(random, {1, 65, 100, 1000, 5000});
  c.top = pick<int64_t>(random, {0, 1, 31, 32, 33, 63, 64, 65, 129, 300, 1000});
  while (c.queries() * c.heads * c.top > 150'000) c.top = (c.top + 1) / 2;
  c.has_count = random() % 2 == 0;
  c.one_row = random() % 8 == 0;
  c.gap = pick<int64_t>(random, {0, 0, 0, 32, 63});
  c.sink = random() % 2 == 0;
  c.lse_with_sink = random() % 2 == 0;
  c.has_d_lse = random() % 2 == 0;
  c.wide = random() % 3 == 0;
  c.scale = pick(random, {0.0f, 0.0f, 0.07f, 0.5f});
  c.spread = pick(random, {1.0f, 1.0f, 4.0f});
  c.of_d_o = pick(random, {1.0f, 1.0f, 0.01f, 10.0f});
  c.deterministic = random() % 2 == 0;
  return c;
}

struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
  explicit Workspace(const fa3_mla_backward_params& p) {
    if (fa3_mla_backward_workspace_size(&p, &bytes) != FA3_OK) return;
    CHECK_CUDA(cudaMalloc(&data, std::max<size_t>(bytes, 1)));
    CHECK_CUDA(cudaMemset(data, 0xff, bytes));
  }
  ~Workspace() { cudaFree(data); }
};

// Gradients are finite at the same places, however they are summed.
std::string compare_broken(const GradientCase& c, const test::GradientCall& call) {
  const bool is_nan = c.seed % 2 == 0, is_fp16 = c.dtype == FA3_FLOAT16;
  const uint16_t bits = is_nan ? 0x7fff : is_fp16 ? 0x7c00 : 0x7f80;
  const fa3_tensor& broken = c.seed % 3 == 0 ? call.params().q : call.params().d_o;
  CHECK_CUDA(cudaMemcpy(broken.data, &bits, sizeof(bits), cudaMemcpyHostToDevice));
  std::vector<bool> finite[2];
  for (int32_t deterministic : {0, 1}) {
    fa3_mla_backward_params p = call.params();
    p.deterministic = deterministic;
    const Workspace workspace(p);
    if (fa3_mla_backward(&p, workspace.data, workspace.bytes, nullptr) != FA3_OK) {
      return fa3_last_error();
    }
    CHECK_CUDA(cudaDeviceSynchronize());
    finite[deterministic] = call.are_finite();
  }
  return finite[0] == finite[1] ? "" : "with a number that is not finite: other gradients are";
}

bool check(const GradientCase& c, double* worst) {
  const std::string words = test::describe(c);
  test::GradientCall call(c, FA3_CUDA);
  const Watchdog watchdog(words, 60);  // a sanitizer takes 20 s where it shares the GPU
  const Workspace workspace(call.params());
  std::vector<std::byte> first;
  for (int pass = 0; pass < (c.deterministic ? 3 : 2); ++pass) {
    std::string said;
    if (fa3_mla_backward(&call.params(), workspace.data, workspace.bytes, nullptr) != FA3_OK) {
      said = fa3_last_error();
    } else {
      CHECK_CUDA(cudaDeviceSynchronize());
      said = call.compare();
      if (pass == 0) first = call.gradients();
      if (c.deterministic && call.gradients() != first) said = "other bits than the first time";
      if (said.empty() && pass == 2) said = compare_broken(c, call);
    }
    *worst = std::max(*worst, call.error());
    if (said.empty()) continue;
    std::printf("FAILED %s: pass %d: %s\n", words.c_str(), pass, said.c_str());
    return false;
  }
  return true;
}

// ---- Times ----

// Random numbers, of which many are alike.
void fill(DeviceArray<uint16_t>& array, float spread) {
  std::vector<uint16_t> some(std::min<size_t>(array.count, size_t{1} << 22));
  std::normal_distribution<float> normal;
  Engine random(some.size());
  for (uint16_t& x : some) x = from_float<BFloat16>(spread * normal(random)).bits;
  for (size_t at = 0; at < array.count; at += some.size()) {
    const size_t count = std::min(some.size(), array.count - at);
    CHECK_CUDA(cudaMemcpy(array.data + at, some.data(), 2 * count, cudaMemcpyHostToDevice));
  }
}

// causal: query i chooses among rows up to its own; else among all.
void time_shape(int64_t tokens, int64_t heads, int64_t top, int64_t rows, bool causal) {
  const Watchdog watchdog("a timed call", 60);
  DeviceArray<uint16_t> q(size_t(tokens * heads * 576)), d_o(size_t(tokens * heads * 512));
  DeviceArray<uint16_t> kv(size_t(rows * 576)), o(d_o.count), dq(q.count), d_kv(kv.count);
  fill(q, 1), fill(kv, 1), fill(d_o, 1);
  std::vector<int32_t> chosen;
  Engine random(1);
  int64_t pairs = 0;
  std::vector<int32_t> all(static_cast<size_t>(rows));
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t seen = causal ? std::min(i + 1 + rows - tokens, rows) : rows;
    for (int64_t j = 0; j < seen; ++j) all[size_t(j)] = int32_t(j);
    for (int64_t j = 0; j < top; ++j) {
      if (j >= seen) {
        chosen.push_back(-1);
        continue;
      }
      std::swap(all[size_t(j)], all[size_t(j) + random() % size_t(seen - j)]);
      chosen.push_back(all[size_t(j)]);
    }
    pairs += std::min(seen, top);
  }
  const DeviceArray<int32_t> indices(chosen);
  const DeviceArray<float> lse(size_t(tokens * heads));
  fa3_mla_forward_params f;
  fa3_mla_forward_params_init(&f);
  f.q = tensor_of(q.data, FA3_BFLOAT16, {tokens, heads, 576});
  f.cache.rows = tensor_of(kv.data, FA3_BFLOAT16, {1, rows, 576});
  f.indices = tensor_of(indices.data, FA3_INT32, {tokens, top});
  f.o = tensor_of(o.data, FA3_BFLOAT16, {tokens, heads, 512});
  f.lse = tensor_of(lse.data, FA3_FLOAT32, {heads, tokens});
  fa3_mla_backward_params b;
  fa3_mla_backward_params_init(&b);
  b.q = f.q, b.cache = f.cache.rows, b.indices = f.indices, b.o = f.o, b.lse = f.lse;
  b.d_o = tensor_of(d_o.data, FA3_BFLOAT16, {tokens, heads, 512});
  b.dq = tensor_of(dq.data, FA3_BFLOAT16, {tokens, heads, 576});
  b.d_cache = tensor_of(d_kv.data, FA3_BFLOAT16, {1, rows, 576});
  size_t bytes = 0;
  if (fa3_mla_forward_workspace_size(&f, &bytes) != FA3_OK) bytes = 0;
  const DeviceArray<unsigned char> of_forward(bytes);
  fa3_mla_backward_params deterministic = b;
  deterministic.deterministic = 1;
  const Workspace of_backward(b), of_deterministic(deterministic);
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  const auto median = [&](const auto& run) {
    std::vector<float> times;
    for (int i = 0; i < 6; ++i) {
      CHECK_CUDA(cudaEventRecord(begin));
      if (run() != FA3_OK) {
        std::printf("FAILED time: %s\n", fa3_last_error());
        std::exit(1);
      }
      CHECK_CUDA(cudaEventRecord(end));
      CHECK_CUDA(cudaEventSynchronize(end));
      float ms = 0;
      CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
      if (i > 0) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return double(times[times.size() / 2]);
  };
  const double forward =
      median([&] { return fa3_mla_forward(&f, of_forward.data, bytes, nullptr); });
  const double backward =
      median([&] { return fa3_mla_backward(&b, of_backward.data, of_backward.bytes, nullptr); });
  const std::vector<uint16_t> in_floats = d_kv.fetch();
  const double repeatable = median([&] {
    return fa3_mla_backward(&deterministic, of_deterministic.data, of_deterministic.bytes, nullptr);
  });
  const std::vector<uint16_t> in_integers = d_kv.fetch();
  for (int i = 0; i < 5; ++i) {
    fa3_mla_backward(&deterministic, of_deterministic.data, of_deterministic.bytes, nullptr);
    if (d_kv.fetch() == in_integers) continue;
    std::printf("FAILED time: other bits than before\n");
    std::exit(1);
  }
  double squares = 0, errors = 0;
  for (size_t i = 0; i < in_floats.size(); ++i) {
    const double x = to_float(BFloat16{in_floats[i]});
    const double error = x - double{to_float(BFloat16{in_integers[i]})};
    squares += x * x, errors += error * error;
  }
  const double products = 2.0 * double(pairs) * double(heads);
  std::printf(
      "%6ld tokens, %3ld heads, top-k %4ld of %6ld%s: forward %8.3f ms %4.0f TFLOP/s, "
      "backward %8.3f ms %4.0f TFLOP/s, deterministic %8.3f ms %4.0f TFLOP/s, "
      "differs by %.1g\n",
      long(tokens), long(heads), long(top), long(rows), causal ? " causal" : "", forward,
      products * 1088 / forward * 1e-9, backward, products * 2752 / backward * 1e-9, repeatable,
      products * 2752 / repeatable * 1e-9, std::sqrt(errors / squares));
  std::fflush(stdout);
}

void time_all() {
  std::printf("bf16, 576 dims; backward: 5 products, 2 x 2752 operations a head and chosen row\n");
  for (const int64_t heads : {128, 64, 16}) {
    for (const bool causal : {false, true}) time_shape(4096, heads, 2048, 4096, causal);
  }
  for (const int64_t top : {512, 1024}) time_shape(4096, 128, top, 4096, false);
  for (const int64_t rows : {32768, 131072}) time_shape(4096, 128, 2048, rows, false);
}

}  // namespace
}  // namespace fa3::testing

int main(int argc, char** argv) {
  using namespace fa3::testing;
  int64_t calls = 200;
  uint64_t seed = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--time") == 0) {
      time_all();
      return 0;
    }
    if (std::strcmp(argv[i], "--calls") == 0 && i + 1 < argc) calls = std::atoll(argv[++i]);
    if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
      seed = std::strtoull(argv[++i], nullptr, 10);
  }
  int64_t failed = 0;
  double worst = 0;
  for (int64_t i = 0; i < calls && failed < 10; ++i) {
    if (!check(random_case(seed * 1000 + uint64_t(i)), &worst)) ++failed;
  }
  std::printf("largest relative RMSE %.2g\n", worst);
  std::printf("%ld checks, %ld failures\n", long(calls), long(failed));
  return failed == 0 ? 0 : 1;
}
