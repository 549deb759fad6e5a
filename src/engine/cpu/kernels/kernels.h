// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one instruction set, as a table of functions; isa.h chooses the table.
// Arrays are indexed by dtype: float32, float16, bfloat16, and float8 where it can occur.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "engine/cpu/kernels/block_job.h"
#include "engine/cpu/kernels/gradient_tile.h"

namespace fa3::cpu {

// Packs operands into a tile's buffers, by their dtype, and adds a tile to dQ, dK and dV.
struct GradientKernels {
  GradientShape shape;
  void (*load_keys[3])(const GradientTile& tile, OperandRows k, OperandRows v);
  void (*load_q[3])(const GradientTile& tile, OperandRows q);
  void (*load_d_o[3])(const GradientTile& tile, OperandRows d_o);
  void (*add)(const GradientTile& tile);
};

struct Kernels {
  const char* name;           // "avx512"
  const char* bf16_products;  // what multiplies bfloat16 as it is; null: it is widened to float
  GroupShape group_shape[4];
  // Tiled attention of a block of rows, by the dtype of keys and values: packs key and value tiles,
  // two micro-kernels per tile.
  void (*attend_block[4])(const BlockJob& job);
  // Packs the keys and values [begin, end), a tile, into the job's buffers. The keys up to
  // `visible_end` come next.
  void (*pack_tile[4])(const BlockJob& job, int64_t begin, int64_t end, int64_t visible_end);
  // Like attend_block, for at most GroupShape::stream_rows rows: reads keys and values in place.
  // The jobs belong to several key heads, differ in the heads' data only, and share one pass over
  // the keys.
  void (*attend_rows[4])(const BlockJob* jobs, int64_t num_jobs);
  // A row as floats, padded with zeros to 16 columns.
  void (*load_row[4])(const void* row, int64_t dim, float* to);
  // Merges parts and writes O and LSE; by the dtype of O.
  void (*write_rows[3])(const WriteJob& job);
  // Backward, in floats, and where all operands are bfloat16 and there is something better.
  GradientKernels gradients;
  const GradientKernels* bf16_gradients;
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

// Each is defined where it is compiled: x86-64, 64-bit Arm, or everywhere.
namespace amx {
extern const Kernels kKernels;
}
namespace avx512_bf16 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace neon_bf16 {
extern const Kernels kKernels;
}
namespace neon {
extern const Kernels kKernels;
}
namespace portable {
extern const Kernels kKernels;
}

// The rate that the forward could reach at best on this machine at this moment: multiply-adds from
// registers, as its kernel for `dtype` uses them (float FMA, or vdpbf16ps where the engine uses
// it). Floating-point operations per second of all threads together; one sample of 10 ms.
double measure_peak_flops(DType dtype, int num_threads);
// Like the function above, for given kernels.
double measure_peak_flops(const Kernels& kernels, DType dtype, int num_threads);

}  // namespace fa3::cpu
