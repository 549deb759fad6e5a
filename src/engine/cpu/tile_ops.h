// SPDX-License-Identifier: Apache-2.0
//
// What the backward pass does to float tiles, compiled once per instruction set. Tiles are row-major
// with rows padded to kTilePad floats; padding holds zeros.
#pragma once

#include <cstdint>

namespace fa3::cpu {

// Rows of tiles are padded to whole vectors of the widest instruction set: 16 floats = 64 bytes.
constexpr int64_t kTilePad = 16;

constexpr int64_t padded(int64_t columns) {
  return (columns + kTilePad - 1) / kTilePad * kTilePad;
}

// A factor that is read one element at a time, so any strides do (a transpose is free).
struct Factor {
  const float* data;
  int64_t row_stride;
  int64_t column_stride;
};

// Rows of vectors: a product's right factor, or its result.
template <class T>
struct TileRows {
  T* data;
  int64_t row_stride;
};

struct TileOps {
  const char* isa;
  // c (m x n) += a (m x k) b (k x n); n is a multiple of kTilePad.
  void (*multiply_add)(int64_t m, int64_t n, int64_t k, Factor a, TileRows<const float> b,
                       TileRows<float> c);
  // x[i] = 2^x[i] for a multiple of kTilePad elements; NaN stays NaN.
  void (*exp2)(float* x, int64_t count);
};

// The widest instruction set that this machine has (and FA3_CPU_ISA allows).
const TileOps& tile_ops();

}  // namespace fa3::cpu
