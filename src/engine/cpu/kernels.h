// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one instruction set, as a table of functions; isa.h chooses the table.
// Arrays are indexed by dtype: float32, float16, bfloat16.
#pragma once

#include <cstdint>

#include "engine/cpu/block_job.h"

namespace fa3::cpu {

struct Kernels {
  const char* name;        // "avx512"
  bool has_bf16_products;  // multiplies bfloat16 as it is, instead of widening it to float
  // Tiled attention of a block of rows: packs key and value tiles, two micro-kernels per tile.
  void (*attend_block[3])(const BlockJob& job);
  // The same for at most kStreamRows rows: reads keys and values in place.
  void (*attend_rows[3])(const BlockJob& job);
  // Merges parts and writes O and LSE; by the dtype of O.
  void (*write_rows[3])(const WriteJob& job);
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
