// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX-512 with bfloat16 dot products (vdpbf16ps).
#define FA3_ISA avx512_bf16
#include "engine/cpu/simd/kernel_table.h"

namespace fa3::cpu {

namespace {
using namespace avx512_bf16;

constexpr Kernels kTable = [] {
  Kernels table = table_of<Bf16Pairs>("avx512_bf16");
  table.bf16_products = "vdpbf16ps";
  table.bf16_gradients = &kPairGradients;
  return table;
}();
}  // namespace

const Kernels* const kAvx512Bf16Kernels = &kTable;

}  // namespace fa3::cpu
