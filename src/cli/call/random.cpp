// SPDX-License-Identifier: Apache-2.0
#include "cli/call/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <thread>
#include <vector>

#include "core/threads.h"

namespace fa3::cli {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): a counter, mixed.
uint64_t mix(uint64_t counter) {
  uint64_t z = counter * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Box-Muller: two uniforms of 24 bits make two normals.
void normal_pair(uint64_t bits, float pair[2]) {
  const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;  // in (0, 1)
  const float angle =
      2 * std::numbers::pi_v<float> * static_cast<float>(bits & 0xffffffu) * 0x1p-24f;
  const float radius = std::sqrt(-2 * std::log(u));
  pair[0] = radius * std::cos(angle);
  pair[1] = radius * std::sin(angle);
}

// Elements [begin, end), begin even.
void fill_range(HostTensor* tensor, uint64_t stream, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 2) {
    float pair[2];
    normal_pair(mix(stream + static_cast<uint64_t>(i)), pair);
    set_element(tensor->data(), tensor->dtype(), i, pair[0]);
    if (i + 1 < end) set_element(tensor->data(), tensor->dtype(), i + 1, pair[1]);
  }
}

}  // namespace

void fill_normal(HostTensor* tensor, uint64_t seed) {
  if (tensor->data() == nullptr) return;
  const int64_t count = tensor->elements();
  const uint64_t stream = mix(seed + 1);
  constexpr int64_t kWorthAThread = 1 << 18;  // elements, even
  const int64_t threads =
      std::clamp<int64_t>(count / kWorthAThread, 1, int64_t{available_threads()});
  const int64_t share = (count / threads + 1) / 2 * 2;
  std::vector<std::jthread> workers;
  for (int64_t begin = share; begin < count; begin += share) {
    workers.emplace_back(fill_range, tensor, stream, begin, std::min(begin + share, count));
  }
  fill_range(tensor, stream, 0, std::min(share, count));
}

}  // namespace fa3::cli
