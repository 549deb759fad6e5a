// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one instruction set, as a table of functions; isa.h chooses the table.
// Arrays are indexed by dtype: float32, float16, bfloat16.
#pragma once

#include <cstdint>

#include "engine/cpu/block_job.h"

namespace fa3::cpu {

// The left factor of a product of tiles. Any strides do, so a transpose is free.
struct TileFactor {
  const float* data;
  int64_t row_stride;
  int64_t column_stride;
};

struct Kernels {
  const char* name;        // "avx512"
  bool has_bf16_products;  // multiplies bfloat16 as it is, instead of widening it to float
  // Tiled attention of a block of rows: packs key and value tiles, two micro-kernels per tile.
  void (*attend_block[3])(const BlockJob& job);
  // The same for at most kStreamRows rows: reads keys and values in place.
  void (*attend_rows[3])(const BlockJob& job);
  // Merges parts and writes O and LSE; by the dtype of O.
  void (*write_rows[3])(const WriteJob& job);
  // Tiles of floats, rows padded to whole vectors (backward.cpp):
  // c (m x n) += a (m x depth) b (depth x n), n a multiple of kMaxLanes.
  void (*add_product)(int64_t m, int64_t n, int64_t depth, TileFactor a, const float* b,
                      int64_t b_stride, float* c, int64_t c_stride);
  // x[i] = 2^x[i], count a multiple of kMaxLanes.
  void (*exp2)(float* x, int64_t count);
  // Runs `repeats` rounds of independent multiply-adds, as the kernel for this dtype uses them, and
  // returns their number of floating-point operations.
  double (*multiply_add[3])(int64_t repeats);
};

extern const Kernels* const kPortableKernels;
// x86-64 only:
extern const Kernels* const kAvx2Kernels;
extern const Kernels* const kAvx512Kernels;
extern const Kernels* const kAvx512Bf16Kernels;

}  // namespace fa3::cpu
