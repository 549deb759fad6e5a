// SPDX-License-Identifier: Apache-2.0
//
// What a call costs the host: microseconds from its start until it returns, on a queue that is
// empty (median of 1000, each timed alone) and behind 63 others (median of 20 such rounds). In
// front of the calls is what no call can do without, alone: an empty kernel's launch with as many
// bytes of parameters and of shared memory, a tensor map. Next:
// tests/cpp/engine/hopper/launch/step_test.cpp counts what is asked.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "clock.h"

namespace {

using benchmarks::seconds_now;

constexpr int kBlocks = 132, kThreads = 128, kSharedBytes = 200 << 10;

struct Parameters {
  std::byte bytes[2048];
};
__global__ void empty_kernel(const __grid_constant__ Parameters) {}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

template <class Body>
void report(const char* name, cudaStream_t stream, Body&& body) {
  const auto microseconds = [&](int calls) {
    const double begin = seconds_now();
    for (int i = 0; i < calls; ++i) body();
    const double end = seconds_now();
    check(cudaStreamSynchronize(stream));
    return (end - begin) / calls * 1e6;
  };
  std::vector<double> alone, in_a_row;
  for (int i = 0; i < 1100; ++i) alone.push_back(microseconds(1));
  alone.erase(alone.begin(), alone.begin() + 100);  // until code and memory are warm
  for (int i = 0; i < 20; ++i) in_a_row.push_back(microseconds(64));
  std::printf("%-44s %6.2f alone %6.2f in a row\n", name, median(alone), median(in_a_row));
}

void report_floor(void* memory, cudaStream_t stream) {
  cudaLaunchAttribute chain{};
  chain.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  chain.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = kBlocks;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &chain;
  static Parameters parameters;
  void* arguments[] = {&parameters};
  const auto* kernel = reinterpret_cast<const void*>(&empty_kernel);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const auto launch = [&] { check(cudaLaunchKernelExC(&config, kernel, arguments)); };
  report("the clock", stream, [] {});
  report("an empty kernel", stream, launch);
  config.numAttrs = 1;
  report("an empty kernel, chained to the one before", stream, launch);

  void* encoder = nullptr;
  cudaDriverEntryPointQueryResult found;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encoder, 12000,
                                         cudaEnableDefault, &found));
  report("a tensor map", stream, [&] {
    CUtensorMap map;
    const cuuint64_t extents[] = {128, 8, 1, 8, 1}, strides[] = {256, 2048, 2048, 16384};
    const cuuint32_t box[] = {64, 8, 8, 1, 1}, steps[] = {1, 1, 1, 1, 1};
    reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encoder)(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, memory, extents, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  });
}

struct Shape {
  const char* name;
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  int64_t page;  // rows; 0: keys lie in one piece, and all count
};
constexpr Shape kShapes[] = {
    {"a step of decoding, 2k keys in pages of 16", 1, 1, 2048, 64, 8, 128, 16},
    {"a step of decoding, 8 x 8k in pages of 16", 8, 1, 8192, 64, 8, 128, 16},
    {"a step of decoding, 2k keys", 1, 1, 2048, 64, 8, 128, 0},
    {"16 tokens, 8 x 2k in pages of 16", 8, 16, 2048, 64, 8, 128, 16},
    {"a prompt of 128 tokens", 1, 128, 128, 12, 12, 64, 0},
    {"a prompt of 1k tokens", 1, 1024, 1024, 12, 12, 64, 0},
    {"a prompt of 2k tokens", 1, 2048, 2048, 16, 16, 128, 0},
};

// All zeros: sequences without keys, so that the GPU is done soon.
fa3_tensor tensor(void* memory, fa3_dtype dtype, std::initializer_list<int64_t> shape) {
  fa3_tensor t = fa3::contiguous(memory, dtype, shape);
  t.device_type = FA3_CUDA;
  return t;
}

void report_call(const Shape& s, char* memory, int64_t part, cudaStream_t stream) {
  const auto halves = [&](int number, std::initializer_list<int64_t> shape) {
    return tensor(memory + number * part, FA3_BFLOAT16, shape);
  };
  const int64_t entries = s.page > 0 ? s.batch * s.keys / s.page : s.batch;
  const int64_t rows = s.page > 0 ? s.page : s.keys;
  fa3::ForwardArgs args;
  args.q = halves(0, {s.batch, s.queries, s.heads, s.head_dim});
  args.k = halves(1, {entries, rows, s.kv_heads, s.head_dim});
  args.v = halves(2, {entries, rows, s.kv_heads, s.head_dim});
  args.o = halves(3, {s.batch, s.queries, s.heads, s.head_dim});
  args.options.causal = 1;
  if (s.page > 0) {
    args.page_table = tensor(memory + 4 * part, FA3_INT32, {s.batch, s.keys / s.page});
    args.options.seqused_k = tensor(memory + 5 * part, FA3_INT32, {s.batch});
  }
  report(s.name, stream, [&] {
    if (fa3_forward(&args, memory + 6 * part, size_t(part), stream) == FA3_OK) return;
    std::fprintf(stderr, "%s: %s\n", s.name, fa3_last_error());
    std::exit(1);
  });
}

}  // namespace

int main() {
  constexpr int64_t kPart = int64_t{256} << 20;  // more than any tensor or workspace has
  char* memory = nullptr;
  cudaStream_t stream = nullptr;
  check(cudaMalloc(&memory, 7 * kPart));
  check(cudaMemset(memory, 0, 7 * kPart));
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  report_floor(memory, stream);
  for (const Shape& shape : kShapes) report_call(shape, memory, kPart, stream);
}
