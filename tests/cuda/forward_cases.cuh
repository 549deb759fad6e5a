// SPDX-License-Identifier: Apache-2.0
// What forward_check.cu runs: shapes, and data that drives the softmax into each of its branches.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cuda/forward_reference.cuh"

namespace fa3::testing {

// How the logits run along the keys. Blocks are visited from the last key to the first.
enum class Data {
  kNormal,
  kPeaked,
  kVeryPeaked,
  kFlat,
  kRising,   // towards key 0, linearly, by `amount` nats
  kFalling,  // away from key 0
  kStep,     // the first half of the keys is higher by `amount`
  kSink,     // key 0 is higher by `amount`
  kNanQuery,
  kNanKey,
  kNanValue,
  kInfQuery,
  kInfKey,
  kHuge,
};

struct Case {
  const char* name;
  int batches, heads, kv_heads, seqlen_q, seqlen_k;
  bool causal;
  Data data = Data::kNormal;
  float amount = 0;
  int head_dim = 0;  // 0: the configuration's
  int head_dim_v = 0;
  bool head_major = false;  // (batch, head, row, column), rows padded, padding poisoned
};

// clang-format off
inline constexpr Case kCases[] = {
    {"one-tile", 1, 1, 1, 128, 128, false},
    {"one-key", 1, 2, 2, 5, 1, false},
    {"even", 2, 3, 3, 512, 512, false},
    {"even-causal", 2, 3, 3, 512, 512, true},
    {"long", 1, 2, 2, 1024, 4096, false},
    {"long-causal", 1, 2, 2, 2048, 2048, true},
    {"many-tiles", 5, 8, 8, 700, 300, false},
    {"many-tiles-causal", 5, 8, 8, 900, 900, true},
    {"ragged", 2, 3, 3, 113, 203, false},
    {"ragged-causal", 2, 3, 3, 113, 203, true},
    {"more-queries-causal", 2, 2, 2, 777, 333, true},
    {"far-more-queries-causal", 1, 2, 2, 1000, 3, true},
    {"one-query-causal", 3, 4, 4, 1, 1023, true},
    {"gqa", 2, 8, 2, 300, 517, false},
    {"mqa-causal", 2, 6, 1, 257, 641, true},
    {"gqa-3-causal", 2, 6, 2, 257, 641, true},
    {"ragged-gqa-8-causal", 1, 8, 1, 33, 77, true},
    {"gqa-8-causal", 2, 16, 2, 391, 391, true},
    {"gqa-16-one-query", 3, 16, 1, 1, 777, false},
    {"gqa-32-few-queries", 1, 64, 2, 37, 301, true},
    {"gqa-8-more-queries-causal", 2, 16, 2, 333, 77, true},
    {"gqa-4-head-major-causal", 2, 8, 2, 259, 391, true, Data::kNormal, 0, 0, 0, true},
    {"gqa-8-sink-500", 2, 16, 2, 100, 1500, true, Data::kSink, 500},
    {"gqa-8-nan-query", 1, 16, 2, 100, 700, true, Data::kNanQuery},
    {"head-major", 2, 4, 2, 259, 391, false, Data::kNormal, 0, 0, 0, true},
    {"head-major-causal", 2, 4, 2, 391, 391, true, Data::kNormal, 0, 0, 0, true},
    {"short-head", 2, 2, 2, 300, 300, false, Data::kNormal, 0, -24, -24},
    {"short-head-causal", 2, 2, 2, 300, 300, true, Data::kNormal, 0, -8, -16},
    {"flat", 1, 2, 2, 512, 1024, false, Data::kFlat},
    {"peaked", 1, 2, 2, 512, 1024, false, Data::kPeaked},
    {"very-peaked", 1, 2, 2, 512, 1024, false, Data::kVeryPeaked},
    {"very-peaked-causal", 1, 2, 2, 1024, 1024, true, Data::kVeryPeaked},
    {"rising-5", 1, 2, 2, 512, 2048, false, Data::kRising, 5},
    {"rising-50", 1, 2, 2, 512, 2048, false, Data::kRising, 50},
    {"rising-500", 1, 2, 2, 512, 2048, false, Data::kRising, 500},
    {"rising-500-causal", 1, 2, 2, 2048, 2048, true, Data::kRising, 500},
    {"falling-5", 1, 2, 2, 512, 2048, false, Data::kFalling, 5},
    {"falling-50", 1, 2, 2, 512, 2048, false, Data::kFalling, 50},
    {"falling-500", 1, 2, 2, 512, 2048, false, Data::kFalling, 500},
    {"step-5", 1, 2, 2, 512, 2048, false, Data::kStep, 5},
    {"step-50", 1, 2, 2, 512, 2048, false, Data::kStep, 50},
    {"step-500", 1, 2, 2, 512, 2048, false, Data::kStep, 500},
    {"step-500-many", 4, 8, 8, 512, 1024, false, Data::kStep, 500},
    {"sink-5", 1, 2, 2, 512, 2048, false, Data::kSink, 5},
    {"sink-50", 1, 2, 2, 512, 2048, false, Data::kSink, 50},
    {"sink-500", 1, 2, 2, 512, 2048, false, Data::kSink, 500},
    {"sink-500-causal", 2, 4, 4, 1500, 1500, true, Data::kSink, 500},
    {"huge", 1, 2, 2, 512, 1024, false, Data::kHuge},
    {"nan-query", 1, 2, 2, 512, 1024, false, Data::kNanQuery},
    {"nan-key", 1, 2, 2, 512, 1024, true, Data::kNanKey},
    {"nan-value", 1, 2, 2, 512, 1024, false, Data::kNanValue},
    {"inf-query", 1, 2, 2, 512, 1024, false, Data::kInfQuery},
    {"inf-key", 1, 2, 2, 512, 1024, false, Data::kInfKey},
};
// clang-format on

template <typename T>
struct HostTensor {
  int batches, heads, rows, columns;
  Layout4 stride;
  std::vector<T> data;

  HostTensor(int b, int h, int r, int c, bool head_major)
      : batches(b), heads(h), rows(r), columns(c) {
    if (head_major) {
      const int64_t pitch = c + 8;  // poisoned padding after every row, and a row after every head
      stride = {int64_t(h) * (r + 1) * pitch, pitch, int64_t(r + 1) * pitch};
    } else {
      stride = {int64_t(r) * h * c, int64_t(h) * c, c};
    }
    data.assign(size_t(b) * stride.batch_stride, T(float(NAN)));
  }

  T& at(int b, int r, int h, int c) {
    return data[b * stride.batch_stride + r * stride.row_stride + h * stride.head_stride + c];
  }
};

template <typename T>
void fill(const Case& c, float scale, HostTensor<T>& q, HostTensor<T>& k, HostTensor<T>& v,
          unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  const auto fill_normal = [&](HostTensor<T>& t, float factor) {
    for (int b = 0; b < t.batches; ++b)
      for (int r = 0; r < t.rows; ++r)
        for (int h = 0; h < t.heads; ++h)
          for (int i = 0; i < t.columns; ++i) t.at(b, r, h, i) = T(factor * normal(generator));
  };
  const float q_factor = c.data == Data::kPeaked       ? 4.0f
                         : c.data == Data::kVeryPeaked ? 16.0f
                         : c.data == Data::kFlat       ? 0.02f
                         : c.data == Data::kHuge       ? 1000.0f
                                                       : 1.0f;
  fill_normal(q, q_factor);
  fill_normal(k, c.data == Data::kHuge ? 30.0f : 1.0f);
  fill_normal(v, 1.0f);

  // Column 0 carries the trend: q = 1, k = trend / scale.
  const auto trend = [&](int key) -> float {
    const float position = float(key) / float(k.rows);
    switch (c.data) {
      case Data::kRising:
        return c.amount * (1 - position);
      case Data::kFalling:
        return c.amount * position;
      case Data::kStep:
        return key < k.rows / 2 ? c.amount : 0;
      case Data::kSink:
        return key == 0 ? c.amount : 0;
      default:
        return 0;
    }
  };
  if (c.data >= Data::kRising && c.data <= Data::kSink) {
    for (int b = 0; b < q.batches; ++b) {
      for (int h = 0; h < q.heads; ++h)
        for (int r = 0; r < q.rows; ++r) q.at(b, r, h, 0) = T(1.0f);
      for (int h = 0; h < k.heads; ++h)
        for (int r = 0; r < k.rows; ++r) k.at(b, r, h, 0) = T(trend(r) / scale);
    }
  }
  const float inf = INFINITY;
  if (c.data == Data::kNanQuery) q.at(0, 77, 1, 3) = T(float(NAN));
  if (c.data == Data::kNanKey) k.at(0, 700, 0, 5) = T(float(NAN));
  if (c.data == Data::kNanValue) v.at(0, 900, 1, 2) = T(float(NAN));
  if (c.data == Data::kInfQuery) q.at(0, 200, 0, 1) = T(inf);
  if (c.data == Data::kInfKey) k.at(0, 300, 1, 1) = T(inf);
}

}  // namespace fa3::testing
