// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/kernels/kernels.h"

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/cpu/kernels/isa.h"

namespace fa3::cpu {
namespace {

constexpr double kSeconds = 0.01;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Operations per second of this thread.
double rate_of_thread(double (*multiply_add)(int64_t)) {
  const double begin = seconds_now();
  double operations = 0;
  double elapsed = 0;
  while (elapsed < kSeconds) {
    operations += multiply_add(1000);
    elapsed = seconds_now() - begin;
  }
  return operations / elapsed;
}

}  // namespace

double measure_peak_flops(const Kernels& kernels, DType dtype, int num_threads) {
  double (*const multiply_add)(int64_t) = kernels.multiply_add[kernel_index(dtype)];
  std::vector<double> rates(num_threads);
  std::atomic<int> waiting = num_threads;
  std::vector<std::thread> threads;
  threads.reserve(num_threads);
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      --waiting;
      while (waiting > 0) {  // all start together
      }
      rates[i] = rate_of_thread(multiply_add);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

double measure_peak_flops(DType dtype, int num_threads) {
  return measure_peak_flops(kernels(), dtype, num_threads);
}

}  // namespace fa3::cpu
