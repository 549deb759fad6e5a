// SPDX-License-Identifier: Apache-2.0
// How many bytes at once a tensor's rows may be copied, or its rows stored. Pure functions.
#pragma once

#include <bit>
#include <cstdint>

#include "engine/cuda/tile/tensor_span.h"

namespace fa3::ampere {

inline constexpr int kWidestCopy = 16;

// The largest power of two, up to 16, that address and strides are multiples of. Without an address
// (a question) strides alone decide.
inline int copy_width(const cuda::TensorSpan& t) {
  uint64_t bits = kWidestCopy | reinterpret_cast<uintptr_t>(t.data);
  const auto add = [&](int64_t extent, int64_t stride) {
    if (extent > 1) bits |= uint64_t(stride * t.element_bytes);
  };
  add(t.batches, t.batch_stride);
  add(t.rows, t.row_stride);
  add(t.heads, t.head_stride);
  return 1 << std::countr_zero(bits);
}

}  // namespace fa3::ampere
