// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX-512 (F, BW, DQ, VL).
#define FA3_ISA avx512
#include "engine/cpu/simd/kernel_table.h"

namespace fa3::cpu {

namespace {
using namespace avx512;

constexpr Kernels kTable = table_of<Floats<BFloat16>>("avx512");
}  // namespace

const Kernels* const kAvx512Kernels = &kTable;

}  // namespace fa3::cpu
