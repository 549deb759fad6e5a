// SPDX-License-Identifier: Apache-2.0
//
// The kernels for Arm with bfloat16 dot products (bfdot).
#define FA3_ISA neon_bf16
#define FA3_NEON
#include "engine/cpu/simd/kernel_table.h"

namespace fa3::cpu {

namespace {
using namespace neon_bf16;

constexpr Kernels kTable = [] {
  Kernels table = table_of<Bf16Pairs>("neon_bf16");
  table.bf16_products = "bfdot";
  table.bf16_gradients = &kPairGradients;
  return table;
}();
}  // namespace

const Kernels* const kNeonBf16Kernels = &kTable;

}  // namespace fa3::cpu
