// SPDX-License-Identifier: Apache-2.0
//
// A row on its way into a cache: rotated, divided by its scale, rounded once.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/append.h"

namespace fa3::cpu {

// How a row leaves: each column, in float32, divided by this and rounded once.
template <class To>
To rounded(float x, float divisor) {
  constexpr bool kHasScale = std::is_same_v<To, Float8E4M3> || std::is_same_v<To, Float8E5M2>;
  return from_float<To>(kHasScale ? x / divisor : x);
}

template <class To, class T>
void copy(const T* from, int64_t begin, int64_t end, float divisor, To* to) {
  if constexpr (std::is_same_v<T, To>) {
    if (to != from) std::copy(from + begin, from + end, to + begin);
  } else {
    for (int64_t c = begin; c < end; ++c) to[c] = rounded<To>(to_float(from[c]), divisor);
  }
}

// `to` may be `from`.
template <class Table, class T, class To>
void rotate_by(const RotaryTables& rotary, int64_t position, const T* from, int64_t dim,
               float divisor, To* to) {
  const auto* cos = static_cast<const Table*>(rotary.cos) + position * rotary.cos_stride;
  const auto* sin = static_cast<const Table*>(rotary.sin) + position * rotary.sin_stride;
  const int64_t step = rotary.interleaved ? 2 : 1;
  const int64_t distance = rotary.interleaved ? 1 : rotary.pairs;
  for (int64_t i = 0; i < rotary.pairs; ++i) {
    const float x = to_float(from[i * step]);
    const float y = to_float(from[i * step + distance]);
    const float c = to_float(cos[i]);
    const float s = to_float(sin[i]);
    to[i * step] = rounded<To>(x * c - y * s, divisor);
    to[i * step + distance] = rounded<To>(x * s + y * c, divisor);
  }
  copy(from, 2 * rotary.pairs, dim, divisor, to);
}

template <class T, class To>
void rotate(const RotaryTables& rotary, int64_t position, const T* from, int64_t dim, float divisor,
            To* to) {
  if (rotary.dtype == DType::float32) {
    rotate_by<float>(rotary, position, from, dim, divisor, to);
  } else {
    rotate_by<T>(rotary, position, from, dim, divisor, to);
  }
}

}  // namespace fa3::cpu
