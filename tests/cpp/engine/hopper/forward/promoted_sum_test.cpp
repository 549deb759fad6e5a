// SPDX-License-Identifier: Apache-2.0
//
// O of e4m3 operands by the kernels' own sum in two levels, compiled with numbers, over what tensor
// cores make of a part (support/oracle/e4m3_sum.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "engine/cuda/softmax/score_e4m3.cuh"
#include "engine/hopper/catalogue.h"
#include "engine/hopper/forward/policies/promoted_sum.cuh"
#include "support/oracle/e4m3_sum.h"

namespace fa3::hopper {
namespace {

constexpr float kTop = cuda::DescaledScore<1>::kTop;

using Weights = std::vector<float>;  // of the keys, first to last

// A row without boosts, whose last key has the reference: a weight of kTop.
Weights ruled_by_last_key(int keys, double lead, unsigned seed) {
  std::mt19937 random{seed};
  std::normal_distribution<double> score;
  Weights weights(static_cast<size_t>(keys));
  for (float& w : weights) w = static_cast<float>(double{kTop} * std::exp(score(random) - lead));
  weights.back() = kTop;
  return weights;
}

// Scores from N(0, 1), none above that of the last key, which leads by 3.
Weights ordinary(int keys, unsigned seed) {
  Weights weights = ruled_by_last_key(keys, 3, seed);
  for (float& w : weights) w = std::min(w, kTop);
  return weights;
}

// The values of a channel.
using Values = std::vector<float>;

// What a thread of kernel `C` makes of a tile: its rows' O, channel by channel. One thread has all
// of a row's keys, and its quad what it has.
template <Kernel C>
class Thread {
 public:
  Thread(const Weights (&weights)[kRowsPerThread], const std::vector<Values>& channels)
      : weights_(weights), channels_(channels), blocks_(int(weights[0].size()) / C.shape.block_n) {
    promoted_.start(blocks_ - 1);
    add_sum(blocks_ - 1);
    for (int block = blocks_ - 2; block >= 0; --block) {
      if (promoted_.promotes_under(block)) promote();
      multiply(block + 1);
      add_sum(block);
      if (promoted_.promotes_behind(block)) promote();
    }
    multiply(0);
    promoted_.add_to(output_, 0);
  }

  // The relative error of a row.
  double error(int row) const {
    double off = 0, size = 0;
    for (size_t channel = 0; channel < channels_.size(); ++channel) {
      double want = 0, sum = 0;
      for (size_t key = 0; key < weights_[row].size(); ++key) {
        want += double{weights_[row][key]} * channels_[channel][key];
        sum += weights_[row][key];
      }
      const double got = output_[index(row, channel)];
      off += (got - want) * (got - want) / (sum * sum);
      size += want * want / (sum * sum);
    }
    return std::sqrt(off / size);
  }
  float sum_of_products(int row, size_t channel) const { return output_[index(row, channel)]; }

 private:
  using Sum = PromotedSum<C>;

  static size_t index(int row, size_t channel) {
    return channel / 2 * 4 + size_t(row) * 2 + channel % 2;
  }

  void promote() {
    if (promoted_.promote(output_, rows_, 0)) assigns_ = true;
  }
  void add_sum(int block) {
    for (int row = 0; row < kRowsPerThread; ++row) {
      const float* const first = &weights_[row][size_t(block * C.shape.block_n)];
      rows_.sum[row] += std::accumulate(first, first + C.shape.block_n, 0.0f) / float(kQuadLanes);
    }
  }
  void multiply(int block) {
    for (int row = 0; row < kRowsPerThread; ++row) {
      const size_t first = size_t(block * C.shape.block_n);
      std::vector<float> p;
      for (int i = 0; i < C.shape.block_n; ++i)
        p.push_back(test::rounded_to_e4m3(weights_[row][first + size_t(i)]));
      for (size_t channel = 0; channel < channels_.size(); ++channel) {
        float& o = output_[index(row, channel)];
        const std::span values(&channels_[channel][first], size_t(C.shape.block_n));
        o = float(test::e4m3_sum(assigns_ ? 0 : o, p, values));
      }
    }
    assigns_ = false;
  }

  const Weights (&weights_)[kRowsPerThread];
  const std::vector<Values>& channels_;
  int blocks_;
  cuda::RowState rows_;
  Sum promoted_;
  typename Sum::Output output_ = {};
  bool assigns_ = true;
};

constexpr size_t kChannels = 8;

std::vector<Values> random_channels(int keys) {
  std::vector<Values> channels;
  for (unsigned i = 0; i < kChannels; ++i) {
    channels.push_back(test::random_e4m3(size_t(keys), 2, 0.5f, 10 + i));
  }
  return channels;
}

// In long calls the parts of O come to a close several times.
template <Kernel kConfig>
void check_kernel() {
  constexpr int kKeys = 36 * 128;
  const std::vector<Values> channels = random_channels(kKeys);
  for (const double lead : {6.0, 8.0, 10.0}) {
    const Weights rows[] = {ruled_by_last_key(kKeys, lead, 3), ordinary(kKeys, 4)};
    const Thread<kConfig> thread(rows, channels);
    EXPECT_LT(thread.error(0), 0.03) << kConfig.shape.head_dim << " columns, lead " << lead;
    EXPECT_LT(thread.error(1), 0.01) << kConfig.shape.head_dim << " columns";
  }
  Weights one(kKeys);
  one.back() = kTop;
  const Weights rows[] = {one, one};
  const Thread<kConfig> thread(rows, channels);
  for (size_t channel = 0; channel < kChannels; ++channel) {
    EXPECT_EQ(thread.sum_of_products(0, channel), one.back() * channels[channel].back());
  }
}

TEST(PromotedSum, keeps_what_small_weights_add_beside_a_key_that_rules_its_row) {
  check_kernel<row_named("e4m3 d64/64 192x128").kernel>();
  check_kernel<row_named("e4m3 d128/128 128x128").kernel>();
  check_kernel<row_named("e4m3 d128/128 128x192").kernel>();
  check_kernel<row_named("e4m3 d256/256 128x128").kernel>();
}

}  // namespace
}  // namespace fa3::hopper
