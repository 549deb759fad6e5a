// SPDX-License-Identifier: Apache-2.0
//
// Several threads of a program that call fa3 at once, each with all cores: GFLOP/s of all together
// beside those of one caller. b1 h8 s2048 d128 forward, float32. Prints one JSON object a line.
//
//   callers THREADS SECONDS
#include <atomic>
#include <cstdint>

#include "clock.h"

namespace {

using benchmarks::check;
using benchmarks::on_threads;
using benchmarks::seconds_now;

constexpr int64_t kHeads = 8, kRows = 2048, kHeadDim = 128;
constexpr double kFlops = 4.0 * kHeads * kRows * kRows * kHeadDim;

// Calls that all callers finished per second.
double calls_per_second(int callers, int threads, double seconds) {
  std::atomic<int> calls = 0;
  const double begin = seconds_now();
  on_threads(callers, [&](int caller) {
    std::vector<float> q(kHeads * kRows * kHeadDim, 0.01f * static_cast<float>(caller)),
        o(q.size());
    fa3::ForwardArgs args;
    args.q = args.k = args.v = fa3::bhsd(q.data(), FA3_FLOAT32, 1, kHeads, kRows, kHeadDim);
    args.o = fa3::bhsd(o.data(), FA3_FLOAT32, 1, kHeads, kRows, kHeadDim);
    args.options.num_threads = threads;
    fa3::Workspace workspace;
    while (seconds_now() - begin < seconds) {
      check(fa3::forward(args, workspace));
      ++calls;
    }
  });
  return calls / (seconds_now() - begin);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: callers THREADS SECONDS\n");
    return 2;
  }
  const int threads = std::atoi(argv[1]);
  const double seconds = std::atof(argv[2]);
  for (const int callers : {1, 2, 4, 1, 2, 4}) {
    std::printf("{\"callers\": %d, \"threads\": %d, \"gflops\": %.0f}\n", callers, threads,
                calls_per_second(callers, threads, seconds) * kFlops / 1e9);
    std::fflush(stdout);
  }
  return 0;
}
