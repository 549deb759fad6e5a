// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX2 with FMA and F16C.
#define FA3_ISA avx2
#include "engine/cpu/simd/kernel_table.h"

namespace fa3::cpu {

namespace {
using namespace avx2;

constexpr Kernels kTable = table_of<Floats<BFloat16>>("avx2");
}  // namespace

const Kernels* const kAvx2Kernels = &kTable;

}  // namespace fa3::cpu
