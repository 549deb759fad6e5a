// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one instruction set, as a table of functions; isa.h chooses the table.
// Arrays are indexed by dtype: float32, float16, bfloat16, and e4m3 where it can occur.
#pragma once

#include <cstdint>

#include "engine/cpu/block_job.h"
#include "engine/cpu/gradient_tile.h"

namespace fa3::cpu {

struct Kernels {
  const char* name;        // "avx512"
  bool has_bf16_products;  // multiplies bfloat16 as it is, instead of widening it to float
  // Tiled attention of a block of rows, by the dtype of keys and values: packs key and value tiles, two micro-kernels per tile.
  void (*attend_block[4])(const BlockJob& job);
  // The same for at most kStreamRows rows: reads keys and values in place.
  void (*attend_rows[4])(const BlockJob& job);
  // Merges parts and writes O and LSE; by the dtype of O.
  void (*write_rows[3])(const WriteJob& job);
  // Backward: adds one tile to dQ, dK and dV; floats.
  void (*add_gradients)(const GradientTile& tile);
  // `count` rows of `dim` elements, `row_stride` apart, to floats: as they are, padded to 16 columns;
  // or transposed, in panels of (dim, keys).
  void (*load_rows[4])(const void* rows, int64_t row_stride, int64_t count, int64_t dim, float* to);
  void (*load_panels[3])(const void* rows, int64_t row_stride, int64_t count, int64_t dim,
                         float* to);
  void (*store_gradient[3])(const GradientRows& job);
  // sums[r] = a[r] . b[r]
  void (*dot_rows[3])(const void* a, int64_t a_stride, const void* b, int64_t b_stride,
                      int64_t rows, int64_t dim, float* sums);
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
