// SPDX-License-Identifier: Apache-2.0
//
// Where the scales of float8 tensors lie. What the numbers then stand for: quantization.h.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3 {

// Rows that share a scale: FA3_DESCALE_ROWS of fa3.h, which api/quantization_rules.cpp holds it to.
inline constexpr int kDescaleRows = 64;

constexpr FA3_HD int64_t descale_blocks(int64_t rows) {
  return (rows + kDescaleRows - 1) / kDescaleRows;
}

enum class Scaling { per_tensor, per_head, per_block };

// The scales of a float8 tensor. Rows count from the start of their sequence.
template <class Float>
struct Descales {
  Float* data = nullptr;  // null: all are 1
  Scaling scaling = Scaling::per_tensor;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t block_stride = 0;
  int64_t heads_per_scale = 1;  // neighbouring heads that share one

  FA3_HD constexpr Float* at(int64_t batch, int64_t head, int64_t block) const {
    return data +
           (batch * batch_stride + head / heads_per_scale * head_stride + block * block_stride);
  }
};

// What was subtracted from each channel before it was scaled.
template <class Float>
struct ChannelMeans {
  Float* data = nullptr;  // null: nothing
  int64_t batch_stride = 0;
  int64_t head_stride = 0;

  FA3_HD constexpr Float* at(int64_t batch, int64_t head) const {
    return data + (batch * batch_stride + head * head_stride);
  }
};

// The scales of a quantized cache, by sequence and key head.
struct CacheScales {
  Descales<const float> key;
  Descales<const float> value;
};

}  // namespace fa3
