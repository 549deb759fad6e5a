// SPDX-License-Identifier: Apache-2.0
// Decoding from latent caches on a GPU, through the C interface: random calls against the engine
// `reference` on the CPU, twice for their bits and once from a captured graph; or, with --time, a
// table of times. With --heads all calls, or times, are of so many heads.
// Usage: fa3_gpu_check_latent [--heads N] [--calls N] [--seed N] [--time [bf16 | group128]]
// With --short: times of short calls, in three rounds.
#include <cuda_runtime.h>
#include <fa3/mla.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "cuda/device_array.cuh"
#include "cuda/watchdog.h"

namespace fa3::testing {
namespace {

constexpr int kValues = 512, kRope = 64, kByteRow = 656;

using Random = std::mt19937_64;

int64_t pick(Random& random, std::initializer_list<int64_t> from) {
  return from.begin()[random() % from.size()];
}

uint16_t narrow(float x, int dtype) {
  return dtype == FA3_FLOAT16 ? from_float<Float16>(x).bits : from_float<BFloat16>(x).bits;
}

// A row of 656 bytes. Kernels of 64 query rows round scales, and numbers times scales, to 11 bits:
// scales of 7 bits lose none.
void fill_bytes(unsigned char* row, Random& random) {
  std::normal_distribution<float> normal;
  for (int i = 0; i < kValues; ++i)
    row[i] = static_cast<unsigned char>(random() % 127 | random() % 2 << 7);
  for (int group = 0; group < 4; ++group) {
    const float scale = float(64 + random() % 64) * (random() % 4 == 0 ? 0x1p-13f : 0x1p-16f);
    std::memcpy(row + kValues + group * 4, &scale, 4);
  }
  for (int i = 0; i < kRope; ++i) {
    const uint16_t x = narrow(normal(random), FA3_BFLOAT16);
    std::memcpy(row + kValues + 16 + i * 2, &x, 2);
  }
}

// Numbers on both sides. Strides are those of a packed array of `padded` extents.
struct Array {
  std::vector<unsigned char> host;
  void* device = nullptr;

  explicit Array(size_t bytes, int fill = 0xff) : host(bytes, static_cast<unsigned char>(fill)) {
    CHECK_CUDA(cudaMalloc(&device, std::max<size_t>(bytes, 1)));
  }
  Array(const Array&) = delete;
  ~Array() { cudaFree(device); }
  template <class T>
  T* at(int64_t i) {
    return reinterpret_cast<T*>(host.data()) + i;
  }
  void upload() const {
    CHECK_CUDA(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice));
  }
  void spoil() const { CHECK_CUDA(cudaMemset(device, 0xff, host.size())); }
  std::vector<unsigned char> fetch() const {
    std::vector<unsigned char> found(host.size());
    CHECK_CUDA(cudaMemcpy(found.data(), device, found.size(), cudaMemcpyDeviceToHost));
    return found;
  }
};

fa3_tensor tensor(Array& a, bool on_gpu, int dtype, std::initializer_list<int64_t> shape,
                  std::initializer_list<int64_t> stride, int64_t offset = 0) {
  fa3_tensor t{};
  const int size = dtype == FA3_FLOAT8_E4M3                     ? 1
                   : dtype == FA3_FLOAT32 || dtype == FA3_INT32 ? 4
                                                                : 2;
  t.data = (on_gpu ? static_cast<unsigned char*>(a.device) : a.host.data()) + offset * size;
  t.dtype = dtype;
  t.device_type = on_gpu ? FA3_CUDA : FA3_CPU;
  t.rank = int(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
  std::copy(stride.begin(), stride.end(), t.stride);
  return t;
}

struct Call {
  // What is asked.
  int dtype, dim;
  int64_t batch, tokens, heads, pages, page_size;
  bool bytes, sparse, packed, causal, apart, query_apart, has_sink, lse_with_sink, has_count, wide;
  int64_t top;
  int empty_lse, num_splits, batch_invariant;
  float spread;

  std::string words() const {
    char text[300];
    std::snprintf(
        text, sizeof text,
        "%s%s d%d b%ld t%ld h%ld pages %ld x %ld%s%s%s%s%s%s top %ld splits %d%s spread %g",
        dtype == FA3_FLOAT16 ? "fp16" : "bf16", bytes ? " group128" : "", dim, long(batch),
        long(tokens), long(heads), long(pages), long(page_size), sparse ? " sparse" : "",
        packed ? " packed" : "", causal ? " causal" : "", apart ? " rope apart" : "",
        query_apart ? " q_rope" : "", has_sink ? " sink" : "", long(top), num_splits,
        batch_invariant ? " invariant" : "", double(spread));
    return text;
  }
};

// heads: of the call, or 0 for any number.
Call random_call(Random& random, int64_t heads) {
  Call c{};
  c.dtype = random() % 3 == 0 ? FA3_FLOAT16 : FA3_BFLOAT16;
  c.dim = random() % 3 == 0 ? 512 : 576;
  c.bytes = random() % 2 == 0;
  if (c.bytes) c.dtype = FA3_BFLOAT16;
  c.batch = pick(random, {1, 1, 2, 3, 7, 40});
  c.tokens = pick(random, {1, 1, 1, 2, 3, 4, 17});
  c.heads = pick(random, {1, 3, 8, 16, 16, 17, 32, 33, 64, 65, 128});
  if (heads > 0) c.heads = heads;
  c.page_size = pick(random, {1, 2, 3, 16, 53, 64, 128, 576});
  c.sparse = random() % 3 == 0;
  c.packed = random() % 4 == 0;
  c.causal = !c.sparse && random() % 2 == 0;
  c.apart = !c.bytes && c.dim == 576 && random() % 4 == 0;
  c.query_apart = c.dim == 576 && random() % 4 == 0;
  c.has_sink = random() % 3 == 0;
  c.lse_with_sink = random() % 2 == 0;
  c.has_count = random() % 2 == 0;
  c.wide = random() % 8 != 0;
  c.top = pick(random, {0, 1, 63, 64, 65, 200, 777, 2048});
  c.empty_lse = int(random() % 2);
  c.num_splits = int(pick(random, {0, 0, 0, 1, 2, 7, 64}));
  c.batch_invariant = random() % 8 == 0;
  c.spread = float(pick(random, {1, 1, 1, 4, 30}));
  const int64_t longest = pick(random, {1, 64, 65, 200, 1000, 3000});
  c.pages = std::max<int64_t>((longest + c.page_size - 1) / c.page_size, 1) * 2 + 1;
  // The reference takes a second for so many scores.
  const int64_t keys = c.sparse ? c.top : c.pages / 2 * c.page_size;
  while (c.batch * c.tokens * c.heads * keys > 4'000'000 && c.batch > 1) c.batch = c.batch / 2;
  return c;
}

// The tensors of a call, on both sides.
class Tensors {
 public:
  Tensors(const Call& call, Random& random)
      : c(call),
        each((c.pages - 1) / 2),
        rows(c.packed ? 0 : c.batch * c.tokens),
        starts(size_t(c.batch + 1) * 4),
        used(size_t(c.batch) * 4),
        table(size_t(c.batch * (each + 2)) * 4) {
    for (int64_t b = 0; b <= c.batch; ++b) {
      if (b > 0 && c.packed) rows += int64_t(random() % size_t(c.tokens + 1));
      *starts.at<int32_t>(b) = int32_t(rows);
    }
    if (c.packed) rows += 3;  // that no sequence has
    starts.upload();
    fill_lengths(random);
    page_stride = (c.page_size + 1) * row_elements();
    cache.emplace(size_t(c.pages * page_stride) * (c.bytes ? 1 : 2));
    rope.emplace(size_t(c.apart ? c.pages * c.page_size * kRope : 0) * 2);
    fill_cache(random);
    indices.emplace(size_t(rows * c.top) * 4);
    counts.emplace(size_t(rows) * 4);
    fill_indices(random);
    const int64_t own = c.query_apart ? kValues : c.dim;
    q.emplace(size_t(rows * c.heads * own) * 2);
    q_rope.emplace(size_t(c.query_apart ? rows * c.heads * kRope : 0) * 2);
    sink.emplace(size_t(c.heads) * 4);
    std::normal_distribution<float> normal;
    for (auto* x : {&*q, &*q_rope}) {
      for (size_t i = 0; i < x->host.size() / 2; ++i) {
        *x->at<uint16_t>(int64_t(i)) = narrow(c.spread * normal(random), c.dtype);
      }
      x->upload();
    }
    constexpr float kInfinity = __builtin_inff();
    for (int64_t h = 0; h < c.heads; ++h) {
      const float some[] = {normal(random), normal(random), -kInfinity, kInfinity, 1e4f, -1e4f};
      *sink->at<float>(h) = some[random() % 6];
    }
    sink->upload();
    for (auto* x : {&o, &lse, &max, &expected_o, &expected_lse, &expected_max}) {
      x->emplace(size_t(rows * c.heads * (x == &o || x == &expected_o ? kValues : 1)) * 4);
    }
  }

  // Other lengths and indices of the same shapes.
  void fill_lengths(Random& random) {
    const int64_t most = each * c.page_size;
    for (int64_t b = 0; b < c.batch; ++b) {
      const int64_t some[] = {most, int64_t(random() % size_t(most + 1)), 0, most};
      *used.at<int32_t>(b) = int32_t(some[random() % 4]);
    }
    used.upload();
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t i = 0; i < each + 2; ++i) {
        const bool counts_ = i * c.page_size < *used.at<int32_t>(b);
        // The last page of the cache is one that no table has.
        *table.at<int32_t>(b * (each + 2) + i) =
            counts_ ? int32_t(random() % size_t(c.pages - 1)) : 2147480000;
      }
    }
    table.upload();
  }

  fa3_mla_forward_params params(bool on_gpu, bool expects) {
    fa3_mla_forward_params p;
    fa3_mla_forward_params_init(&p);
    const int64_t h = c.heads, own = c.query_apart ? kValues : c.dim, t = c.tokens, b = c.batch;
    const auto queries = [&](Array& a, int dtype, int64_t n) {
      return rank3() ? tensor(a, on_gpu, dtype, {rows, h, n}, {h * n, n, 1})
                     : tensor(a, on_gpu, dtype, {b, t, h, n}, {t * h * n, h * n, n, 1});
    };
    const auto scalars = [&](Array& a) {
      return rank3() ? tensor(a, on_gpu, FA3_FLOAT32, {h, rows}, {rows, 1})
                     : tensor(a, on_gpu, FA3_FLOAT32, {b, h, t}, {h * t, t, 1});
    };
    p.q = queries(*q, c.dtype, own);
    if (c.query_apart) p.q_rope = queries(*q_rope, c.dtype, kRope);
    p.cache.rows = tensor(*cache, on_gpu, c.bytes ? FA3_FLOAT8_E4M3 : c.dtype,
                          {c.pages, c.page_size, row_elements()}, {page_stride, row_elements(), 1});
    if (c.apart) {
      p.cache.rope = tensor(*rope, on_gpu, c.dtype, {c.pages, c.page_size, kRope},
                            {c.page_size * kRope, kRope, 1});
    }
    if (c.sparse) {
      p.indices = rank3()
                      ? tensor(*indices, on_gpu, FA3_INT32, {rows, c.top}, {c.top, 1})
                      : tensor(*indices, on_gpu, FA3_INT32, {b, t, c.top}, {t * c.top, c.top, 1});
      if (c.has_count) {
        p.index_count = rank3() ? tensor(*counts, on_gpu, FA3_INT32, {rows}, {1})
                                : tensor(*counts, on_gpu, FA3_INT32, {b, t}, {t, 1});
      }
    } else {
      p.page_table = tensor(table, on_gpu, FA3_INT32, {b, each}, {each + 2, 1});
      p.seqused_k = tensor(used, on_gpu, FA3_INT32, {b}, {1});
      if (c.packed) {
        p.cu_seqlens_q = tensor(starts, on_gpu, FA3_INT32, {b + 1}, {1});
        p.max_seqlen_q = c.tokens;
      }
    }
    if (c.has_sink) p.sink = tensor(*sink, on_gpu, FA3_FLOAT32, {h}, {1});
    p.o = queries(expects ? *expected_o : *o, expects || c.wide ? FA3_FLOAT32 : c.dtype, kValues);
    p.lse = scalars(expects ? *expected_lse : *lse);
    p.max = scalars(expects ? *expected_max : *max);
    p.causal = c.causal;
    p.lse_with_sink = c.lse_with_sink;
    p.empty_lse = c.empty_lse;
    p.num_splits = c.num_splits;
    p.batch_invariant = c.batch_invariant;
    p.engine = expects ? FA3_ENGINE_REFERENCE : FA3_ENGINE_AUTO;
    return p;
  }

  // The results on the GPU against the expected ones. An empty string: they are near.
  std::string compare() {
    const auto found_o = o->fetch(), found_lse = lse->fetch(), found_max = max->fetch();
    double worst = 0, error = 0, size = 0;
    const auto* const wide = reinterpret_cast<const float*>(found_o.data());
    const auto* const narrow = reinterpret_cast<const uint16_t*>(found_o.data());
    for (int64_t i = 0; i < rows * c.heads * kValues; ++i) {
      const double expected = *expected_o->at<float>(i);
      const double found = c.wide                   ? wide[i]
                           : c.dtype == FA3_FLOAT16 ? to_float(Float16{narrow[i]})
                                                    : to_float(BFloat16{narrow[i]});
      if (std::isnan(expected) && std::isnan(found)) continue;
      const double off = std::fabs(found - expected);
      if (!(off <= 0.02 + 0.02 * std::fabs(expected))) {
        return "o[" + std::to_string(i / kValues) + "][" + std::to_string(i % kValues) +
               "]: expected " + std::to_string(expected) + ", got " + std::to_string(found);
      }
      worst = std::max(worst, off), error += off * off, size += expected * expected;
    }
    rmse = size > 0 ? std::sqrt(error / size) : 0;
    if (rmse > 0.005) return "o: relative RMSE " + std::to_string(rmse);
    const std::pair<const std::vector<unsigned char>&, Array&> scalars[] = {
        {found_lse, *expected_lse}, {found_max, *expected_max}};
    for (const auto& [found_bytes, expected_array] : scalars) {
      for (int64_t i = 0; i < rows * c.heads; ++i) {
        const float found = reinterpret_cast<const float*>(found_bytes.data())[i];
        const float expected = *expected_array.at<float>(i);
        if (found == expected || (std::isnan(found) && std::isnan(expected))) continue;
        if (std::fabs(found - expected) <= 1e-4 + 2e-5 * std::fabs(expected)) continue;
        return std::string(&expected_array == &*expected_lse ? "lse" : "max") + "[" +
               std::to_string(i) + "]: expected " + std::to_string(expected) + ", got " +
               std::to_string(found);
      }
    }
    return "";
  }

  void spoil_results() {
    for (auto* x : {&o, &lse, &max}) (*x)->spoil();
  }

  double rmse = 0;

 private:
  bool rank3() const { return c.packed; }
  int64_t row_elements() const {
    return c.bytes ? kByteRow : c.apart || c.dim == 512 ? kValues : c.dim;
  }

  void fill_cache(Random& random) {
    std::normal_distribution<float> normal;
    for (int64_t page = 0; page + 1 < c.pages; ++page) {  // the last one stays NaN
      for (int64_t i = 0; c.bytes && i < c.page_size; ++i) {
        fill_bytes(cache->at<unsigned char>(page * page_stride + i * kByteRow), random);
      }
      for (int64_t i = 0; !c.bytes && i < c.page_size * row_elements(); ++i) {
        *cache->at<uint16_t>(page * page_stride + i) = narrow(normal(random), c.dtype);
      }
      for (int64_t i = 0; c.apart && i < c.page_size * kRope; ++i) {
        *rope->at<uint16_t>(page * c.page_size * kRope + i) = narrow(normal(random), c.dtype);
      }
    }
    cache->upload(), rope->upload();
  }

  void fill_indices(Random& random) {
    const int64_t slots = (c.pages - 1) * c.page_size;
    const int64_t nowhere[] = {-1, INT32_MIN, INT32_MAX, c.pages * c.page_size, 2147480000};
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t some[] = {c.top, int64_t(random() % size_t(c.top + 1)), c.top + 5, -7};
      const int64_t count = some[random() % 4];
      *counts->at<int32_t>(row) = int32_t(count);
      const bool none = random() % 16 == 0;
      for (int64_t i = 0; i < c.top; ++i) {
        int64_t slot = int64_t(random() % size_t(slots));
        if (none || random() % 8 == 0) slot = nowhere[random() % 5];
        if (c.has_count && i >= count) slot = slots;  // NaN
        *indices->at<int32_t>(row * c.top + i) = int32_t(slot);
      }
    }
    indices->upload(), counts->upload();
  }

  const Call c;
  const int64_t each;  // pages of a sequence
  int64_t rows;
  int64_t page_stride = 0;
  Array starts, used, table;
  std::optional<Array> cache, rope, indices, counts, q, q_rope, sink;
  std::optional<Array> o, lse, max, expected_o, expected_lse, expected_max;
};

struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
  void* of(const fa3_mla_forward_params& p) {
    if (fa3_mla_forward_workspace_size(&p, &bytes) != FA3_OK) return nullptr;
    CHECK_CUDA(cudaMalloc(&data, std::max<size_t>(bytes, 1)));
    CHECK_CUDA(cudaMemset(data, 0xff, bytes));
    return data;
  }
  ~Workspace() { cudaFree(data); }
};

bool report(const Call& call, const char* what, const std::string& sentence) {
  std::printf("FAILED %s: %s: %s\n", call.words().c_str(), what, sentence.c_str());
  return false;
}

bool check(const Call& call, uint64_t seed, double* rmse) {
  const Watchdog watchdog(call.words(), 60);  // a sanitizer takes 20 s where it shares the GPU
  Random random(seed);
  Tensors tensors(call, random);
  fa3_mla_forward_params expected = tensors.params(false, true);
  const auto expect = [&] {
    std::vector<unsigned char> memory(1 << 26);
    return fa3_mla_forward(&expected, memory.data(), memory.size(), nullptr);
  };
  if (expect() != FA3_OK) return report(call, "reference", fa3_last_error());
  fa3_mla_forward_params p = tensors.params(true, false);
  Workspace workspace;
  void* const memory = workspace.of(p);
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreate(&stream));
  const auto run = [&] { return fa3_mla_forward(&p, memory, workspace.bytes, stream); };
  tensors.spoil_results();
  CHECK_CUDA(cudaDeviceSynchronize());
  if (run() != FA3_OK) return report(call, "run", fa3_last_error());
  CHECK_CUDA(cudaStreamSynchronize(stream));
  if (const std::string off = tensors.compare(); !off.empty()) return report(call, "result", off);
  *rmse = std::max(*rmse, tensors.rmse);
  // From a graph, with other lengths.
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const fa3_status captured = run();
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  if (captured != FA3_OK) return report(call, "capture", fa3_last_error());
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  tensors.fill_lengths(random);
  tensors.spoil_results();
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK_CUDA(cudaGraphLaunch(executable, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  if (expect() != FA3_OK) return report(call, "reference", fa3_last_error());
  const std::string off = tensors.compare();
  cudaGraphExecDestroy(executable), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
  return off.empty() || report(call, "replay", off);
}

// ---- Times ----

struct TimedShape {
  int64_t batch, keys, heads, tokens, page_size, top;  // top > 0: sparse
  bool bytes;                                          // rows of 656 bytes, else of bf16

  int64_t row_bytes() const { return bytes ? kByteRow : 1152; }
};

// Microseconds of a call: of a graph of calls that read different rows of a large cache each, so
// that none finds its rows in the L2 cache.
double time_of(const TimedShape& s, void* pool, int64_t pool_rows, int num_splits) {
  const int64_t of_call = s.top > 0 ? s.batch * s.tokens * s.top : s.batch * s.keys;
  const int64_t calls = std::clamp<int64_t>(pool_rows / of_call, 2, 24);
  const int64_t pages = pool_rows / s.page_size, each = s.keys / s.page_size;
  std::vector<int32_t> table(size_t(calls * (s.top > 0 ? of_call : s.batch * each)));
  Random random(1);
  // Many tokens are a prompt's, and choose among the same rows.
  const int64_t chosen = s.tokens < 16 ? pool_rows : int64_t{1} << 15;
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = int32_t(s.top > 0 ? random() % size_t(chosen) : i % size_t(pages));
  }
  if (s.top == 0) std::shuffle(table.begin(), table.end(), random);
  const DeviceArray<int32_t> entries(table);
  const DeviceArray<int32_t> used(std::vector<int32_t>(size_t(s.batch), int32_t(s.keys)));
  const DeviceArray<uint16_t> o(size_t(s.batch * s.tokens * s.heads * kValues));
  fa3_mla_forward_params p;
  fa3_mla_forward_params_init(&p);
  p.q = tensor_of(pool, FA3_BFLOAT16, {s.batch, s.tokens, s.heads, 576});
  p.o = tensor_of(o.data, FA3_BFLOAT16, {s.batch, s.tokens, s.heads, kValues});
  p.cache.rows = tensor_of(pool, s.bytes ? FA3_FLOAT8_E4M3 : FA3_BFLOAT16,
                           {pages, s.page_size, s.bytes ? kByteRow : 576});
  p.causal = s.top == 0;
  p.num_splits = num_splits;
  if (s.top == 0) p.seqused_k = tensor_of(used.data, FA3_INT32, {s.batch});
  const auto at = [&](int64_t call) {
    if (s.top > 0) {
      p.indices = tensor_of(entries.data + call * of_call, FA3_INT32, {s.batch, s.tokens, s.top});
    } else {
      p.page_table = tensor_of(entries.data + call * s.batch * each, FA3_INT32, {s.batch, each});
    }
  };
  at(0);
  Workspace workspace;
  void* const memory = workspace.of(p);
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int64_t call = 0; call < calls; ++call) {
    at(call);
    if (fa3_mla_forward(&p, memory, workspace.bytes, stream) != FA3_OK) {
      std::printf("FAILED time: %s\n", fa3_last_error());
      std::exit(1);
    }
  }
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 6; ++i) {
    CHECK_CUDA(cudaEventRecord(begin, stream));
    CHECK_CUDA(cudaGraphLaunch(executable, stream));
    CHECK_CUDA(cudaEventRecord(end, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    float ms = 0;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms);
  }
  cudaGraphExecDestroy(executable), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
  std::sort(times.begin(), times.end());
  return double(times[times.size() / 2]) * 1000 / double(calls);
}

constexpr int64_t kPoolRows = int64_t{1} << 23;

// Random rows, of which many are alike.
void* make_pool(bool bytes) {
  const size_t all = size_t(kPoolRows) * (bytes ? kByteRow : 1152);
  std::vector<unsigned char> some(size_t{1 << 14} * (bytes ? kByteRow : 1152));
  Random random(0);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < some.size(); i += bytes ? kByteRow : 2) {
    const uint16_t x = narrow(normal(random), FA3_BFLOAT16);
    bytes ? fill_bytes(&some[i], random) : static_cast<void>(std::memcpy(&some[i], &x, 2));
  }
  void* pool = nullptr;
  CHECK_CUDA(cudaMalloc(&pool, all));
  for (size_t at = 0; at < all; at += some.size()) {
    CHECK_CUDA(cudaMemcpy(static_cast<char*>(pool) + at, some.data(), some.size(),
                          cudaMemcpyHostToDevice));
  }
  return pool;
}

// rows: "bf16", "group128", or "" for both; all_heads: 0 for all.
void time_all(const std::string& rows, int64_t all_heads) {
  std::printf("us of a call (TB/s of rows read once, TFLOP/s); 4.8 TB/s is the card's\n");
  for (const bool bytes : {false, true}) {
    if (!rows.empty() && (rows == "group128") != bytes) continue;
    void* const pool = make_pool(bytes);
    const auto line = [&](int64_t heads, int64_t tokens, int64_t page, int64_t top, int splits) {
      if (all_heads > 0 && heads != all_heads) return;
      std::printf("%s %s h%-3ld t%ld p%-3ld s%d:", bytes ? "group128" : "bf16",
                  top > 0 ? "top-k" : "dense", long(heads), long(tokens), long(page), splits);
      for (const int64_t batch : {1, 8, 32, 128}) {
        for (const int64_t keys : {1024, 4096, 16384, 65536}) {
          if (top > 0 && keys != 1024) continue;
          const Watchdog watchdog("a timed call", 60);
          const TimedShape shape{batch, keys, heads, tokens, page, top, bytes};
          const double us = time_of(shape, pool, kPoolRows, splits);
          const double read = double(batch) * double(top > 0 ? top * tokens : keys);
          const double multiplied = read * double(heads * (top > 0 ? 1 : tokens)) * 2 * (576 + 512);
          std::printf(" %.1f(%.2f,%.0f)", us, read * double(shape.row_bytes()) / us * 1e-6,
                      multiplied / us * 1e-6);
        }
        std::printf(" |");
      }
      std::printf("\n");
      std::fflush(stdout);
    };
    std::printf("batch 1 | 8 | 32 | 128, each 1k 4k 16k 64k keys\n");
    for (const int64_t heads : {16, 32, 64, 128}) {
      for (const int64_t tokens : {1, 2, 4}) line(heads, tokens, 64, 0, 0);
    }
    line(16, 1, 1, 0, 0);
    line(16, 1, 64, 0, 1);
    std::printf("top-k 2048, batch 1 | 8 | 32 | 128\n");
    for (const int64_t heads : {8, 16, 64, 128}) line(heads, 1, 64, 2048, 0);
    for (const int64_t heads : {64, 128}) {
      for (const int64_t tokens : {4, 16, 64}) line(heads, tokens, 64, 2048, 0);
    }
    cudaFree(pool);
  }
}

// 16 heads, pages of 64 rows.
void time_short() {
  std::printf("us of a call: top-k 2048 of 1 | 8 | 32 queries, 1k keys of 1 | 8 | 32 sequences\n");
  for (const bool bytes : {false, true}) {
    void* const pool = make_pool(bytes);
    for (int round = 0; round < 3; ++round) {
      std::printf("%-8s:", bytes ? "group128" : "bf16");
      for (const int64_t top : {2048, 0}) {
        for (const int64_t batch : {1, 8, 32}) {
          const Watchdog watchdog("a timed call", 60);
          std::printf(" %5.1f", time_of({batch, 1024, 16, 1, 64, top, bytes}, pool, kPoolRows, 0));
          std::fflush(stdout);
        }
        std::printf(top > 0 ? " |" : "\n");
      }
    }
    cudaFree(pool);
  }
}

}  // namespace
}  // namespace fa3::testing

int main(int argc, char** argv) {
  using namespace fa3::testing;
  int64_t calls = 200;
  int64_t heads = 0;  // of all calls, or 0
  uint64_t seed = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--time") == 0) {
      time_all(i + 1 < argc ? argv[i + 1] : "", heads);
      return 0;
    }
    if (std::strcmp(argv[i], "--short") == 0) {
      time_short();
      return 0;
    }
    if (std::strcmp(argv[i], "--calls") == 0 && i + 1 < argc) calls = std::atoll(argv[++i]);
    if (std::strcmp(argv[i], "--heads") == 0 && i + 1 < argc) heads = std::atoll(argv[++i]);
    if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
      seed = std::strtoull(argv[++i], nullptr, 10);
  }
  int64_t failed = 0;
  double rmse = 0;
  for (int64_t i = 0; i < calls && failed < 10; ++i) {
    Random random(seed * 1000 + uint64_t(i));
    const Call call = random_call(random, heads);
    if (!check(call, seed * 1000 + uint64_t(i), &rmse)) ++failed;
  }
  std::printf("largest relative RMSE %.2g\n", rmse);
  std::printf("%ld checks, %ld failures\n", long(calls), long(failed));
  return failed == 0 ? 0 : 1;
}
