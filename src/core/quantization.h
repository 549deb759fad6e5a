// SPDX-License-Identifier: Apache-2.0
//
// What float8 numbers stand for, and the arithmetic of the quantizer that every engine must share
// bit for bit: docs/numerics.md has it in one piece. Next: problem.h.
#pragma once

#include <cstdint>

#include "core/macros.h"
#include "core/scales.h"

namespace fa3 {

// A float8 number stands for number * descale + mean.
struct Quantization {
  Descales<const float> descale;
  ChannelMeans<const float> mean;

  // The row counts from the start of its sequence.
  FA3_HD constexpr float scale_at(int64_t batch, int64_t head, int64_t row) const {
    return descale.data == nullptr ? 1.0f : *descale.at(batch, head, row / kDescaleRows);
  }
  // Null: there are none.
  FA3_HD constexpr const float* mean_at(int64_t batch, int64_t head) const {
    return mean.data == nullptr ? nullptr : mean.at(batch, head);
  }
};

// The tables of a rotary embedding; row i is for row i of every sequence.
struct Rotary {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t cos_stride = 0, sin_stride = 0;
  int64_t dim = 0;           // channels that are rotated, from the first on; 0: none
  bool interleaved = false;  // channel pairs (0, 1), (2, 3), ..., else (0, dim / 2), ...
};

// The smallest scale: that of a block of zeros. Its inverse is finite.
constexpr float kSmallestScale = 0x1p-126f;

// The Hadamard matrix of a head dim is block-diagonal, with the largest blocks that divide it.
constexpr FA3_HD int64_t hadamard_block(int64_t head_dim) {
  return head_dim & -head_dim;
}

// block^-0.5, which makes the matrix orthogonal.
constexpr FA3_HD float hadamard_factor(int64_t block) {
  float factor = 1.0f;
  for (; block >= 4; block /= 4) factor *= 0.5f;
  return block == 2 ? factor * 0x1.6a09e6p-1f : factor;
}

// Whether the seed's random sign of a channel is negative: SplitMix64's first bit.
constexpr FA3_HD bool is_negated(uint64_t seed, int64_t channel) {
  uint64_t z = seed + (static_cast<uint64_t>(channel) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (z ^ z >> 31) >> 63 != 0;
}

}  // namespace fa3
