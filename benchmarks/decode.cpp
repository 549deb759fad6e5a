// SPDX-License-Identifier: Apache-2.0
//
// Decoding beside a plain read of the same K and V: one query position, a cache larger than L3,
// both in one process and in turns, best of the rounds. Prints one JSON object a line.
//
//   decode THREADS MIB ROUNDS [bf16|fp16|fp32]
#include <cstdint>
#include <string_view>

#include "clock.h"

namespace {

using benchmarks::check;
using benchmarks::on_threads;
using benchmarks::seconds_now;

constexpr int64_t kHeadDim = 128;

struct Config {
  int threads;
  int64_t bytes;  // of K and V together
  int rounds;
  fa3_dtype dtype;
  const char* dtype_name;
  int64_t element_bytes;
};

// Adds up the words, which the compiler does in vectors.
uint64_t sum_of(const uint64_t* words, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += words[i];
  return sum;
}

double read_seconds(const std::vector<uint64_t>& words, int threads) {
  std::vector<uint64_t> sums(threads * 8);
  const double begin = seconds_now();
  const auto count = static_cast<int64_t>(words.size()) / threads;
  on_threads(threads, [&](int i) { sums[i * 8] = sum_of(words.data() + i * count, count); });
  const double end = seconds_now();
  volatile uint64_t keep = sums[0];
  (void)keep;
  return end - begin;
}

void measure(const Config& config, std::vector<uint64_t>& memory, int64_t heads, int64_t kv_heads,
             bool bshd) {
  const int64_t keys = config.bytes / (2 * kv_heads * kHeadDim * config.element_bytes);
  auto* k = reinterpret_cast<char*>(memory.data());
  char* v = k + keys * kv_heads * kHeadDim * config.element_bytes;
  std::vector<uint32_t> q(heads * kHeadDim), o(heads * kHeadDim);
  fa3::ForwardArgs args;
  args.q = fa3::bshd(q.data(), config.dtype, 1, 1, heads, kHeadDim);
  args.o = fa3::bshd(o.data(), config.dtype, 1, 1, heads, kHeadDim);
  const auto cache = [&](const char* data) {
    return bshd ? fa3::bshd(data, config.dtype, 1, keys, kv_heads, kHeadDim)
                : fa3::bhsd(data, config.dtype, 1, kv_heads, keys, kHeadDim);
  };
  args.k = cache(k);
  args.v = cache(v);
  args.options.num_threads = config.threads;
  fa3::Workspace workspace;
  double best = 1e9, best_read = 1e9;
  for (int round = 0; round <= config.rounds; ++round) {
    const double read = read_seconds(memory, config.threads);
    const double begin = seconds_now();
    check(fa3::forward(args, workspace));
    const double elapsed = seconds_now() - begin;
    if (round == 0) continue;
    best = elapsed < best ? elapsed : best;
    best_read = read < best_read ? read : best_read;
  }
  const double gbytes = static_cast<double>(config.bytes) / 1e9;
  std::printf(
      "{\"pass\": \"fwd\", \"dtype\": \"%s\", \"heads\": %ld, \"kv_heads\": %ld, \"seqlen_q\": 1, "
      "\"seqlen_k\": %ld, \"head_dim\": %ld, \"layout\": \"%s\", \"threads\": %d, "
      "\"gbytes_per_s\": %.1f, \"read_gbytes_per_s\": %.1f, \"share\": %.3f}\n",
      config.dtype_name, heads, kv_heads, keys, kHeadDim, bshd ? "bshd" : "bhsd", config.threads,
      gbytes / best, gbytes / best_read, best_read / best);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: decode THREADS MIB ROUNDS [bf16|fp16|fp32]\n");
    return 2;
  }
  const std::string_view name = argc > 4 ? argv[4] : "bf16";
  Config config = {.threads = std::atoi(argv[1]),
                   .bytes = std::atoll(argv[2]) << 20,
                   .rounds = std::atoi(argv[3]),
                   .dtype = FA3_BFLOAT16,
                   .dtype_name = "bf16",
                   .element_bytes = 2};
  if (name == "fp16") config.dtype = FA3_FLOAT16, config.dtype_name = "fp16";
  if (name == "fp32")
    config.dtype = FA3_FLOAT32, config.dtype_name = "fp32", config.element_bytes = 4;
  std::vector<uint64_t> memory(config.bytes / 8);
  on_threads(config.threads, [&](int i) {  // every page by some thread; small numbers of any type
    for (size_t j = i; j < memory.size(); j += config.threads)
      memory[j] = 0x3c003c003c003c00 ^ j % 64;
  });
  for (const bool bshd : {false, true}) {
    measure(config, memory, 16, 2, bshd);
    measure(config, memory, 64, 8, bshd);
    measure(config, memory, 32, 8, bshd);
    measure(config, memory, 16, 16, bshd);
  }
  return 0;
}
