// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "engine/cpu/isa.h"

namespace fa3::cpu {
namespace {

constexpr int kRounds = 5;
constexpr double kRoundSeconds = 0.02;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Operations per second of this thread over one round.
double rate_of_one_round(double (*multiply_add)(int64_t)) {
  const double begin = seconds_now();
  double operations = 0;
  double elapsed = 0;
  while (elapsed < kRoundSeconds) {
    operations += multiply_add(1000);
    elapsed = seconds_now() - begin;
  }
  return operations / elapsed;
}

}  // namespace

double measure_peak_flops(const Kernels& kernels, DType dtype, int num_threads) {
  double (*const multiply_add)(int64_t) = kernels.multiply_add[kernel_index(dtype)];
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> rates(num_threads);
    std::atomic<int> waiting = num_threads;
    std::vector<std::thread> threads;
    for (int i = 0; i < num_threads; ++i) {
      threads.emplace_back([&, i] {
        --waiting;
        while (waiting > 0) {  // all start together
        }
        rates[i] = rate_of_one_round(multiply_add);
      });
    }
    double sum = 0;
    for (int i = 0; i < num_threads; ++i) {
      threads[i].join();
      sum += rates[i];
    }
    best = std::max(best, sum);
  }
  return best;
}

double measure_peak_flops(DType dtype, int num_threads) {
  return measure_peak_flops(kernels(), dtype, num_threads);
}

}  // namespace fa3::cpu
