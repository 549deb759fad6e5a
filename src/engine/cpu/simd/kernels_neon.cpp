// SPDX-License-Identifier: Apache-2.0
//
// The kernels for NEON, which every 64-bit Arm CPU has.
#define FA3_ISA neon
#define FA3_NEON
#include "engine/cpu/simd/kernel_table.h"

namespace fa3::cpu {

namespace {
using namespace neon;

constexpr Kernels kTable = table_of<Floats<BFloat16>>("neon");
}  // namespace

const Kernels* const kNeonKernels = &kTable;

}  // namespace fa3::cpu
