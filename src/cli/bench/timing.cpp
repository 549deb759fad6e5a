// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/timing.h"

#include <algorithm>
#include <utility>

namespace fa3::cli {
namespace {

constexpr int kFewest = 7;  // of calls that are not long
constexpr int kMost = 51;
constexpr double kShortTotal = 0.5;  // seconds that many short calls may take
constexpr double kLongTotal = 20;    // seconds after which fewer calls must do

int chosen_repeats(double seconds_each) {
  if (seconds_each * kFewest > kLongTotal) {
    return std::max(1, static_cast<int>(kLongTotal / seconds_each));
  }
  const double wanted = kShortTotal / std::max(seconds_each, 1e-9);
  return static_cast<int>(std::clamp(wanted, double{kFewest}, double{kMost}));
}

double visible_pairs(const Shape& shape, bool causal) {
  const auto sq = static_cast<double>(shape.seqlen_q);
  const auto sk = static_cast<double>(shape.seqlen_k);
  if (!causal) return sq * sk;
  const double rows = std::min(sq, sk);  // rows that see a key at all
  return rows * (sk - rows) + rows * rows / 2;
}

}  // namespace

Timing timing_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const size_t middle = seconds.size() / 2;
  const double median =
      seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
  const size_t tenth = (seconds.size() - 1 + 5) / 10;
  return {.median = median,
          .min = seconds.front(),
          .p10 = seconds[tenth],
          .p90 = seconds[seconds.size() - 1 - tenth],
          .max = seconds.back(),
          .repeats = static_cast<int>(seconds.size())};
}

Timing time_call(const std::function<double()>& call, int repeats) {
  const double warm_up = call();
  if (repeats <= 0) repeats = chosen_repeats(warm_up);
  std::vector<double> seconds;
  seconds.reserve(static_cast<size_t>(repeats));
  for (int i = 0; i < repeats; ++i) seconds.push_back(call());
  return timing_of(std::move(seconds));
}

double forward_flops(const Shape& shape, bool causal) {
  return 2.0 * static_cast<double>(shape.head_dim + shape.head_dim_v) *
         static_cast<double>(shape.batch * shape.heads) * visible_pairs(shape, causal);
}

double backward_flops(const Shape& shape, bool causal) {
  return 2.5 * forward_flops(shape, causal);
}

}  // namespace fa3::cli
